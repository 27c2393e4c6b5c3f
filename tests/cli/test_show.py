"""``attnscope show``, also of generated text and chats; and the start of ``browse``."""

import builtins
import re
import shlex
import sys
from importlib import import_module

import numpy as np
import pytest

from attnscope.cli import build
from tests.models import folders
from tests.questions.roles import plant_roles

TEXT = "The cat sat on the mat because it was tired."
LONG = f"{TEXT} " * 8


def test_suggested_command_opens_its_head(run):
    out = run("show", TEXT, "-m", folders.minilm()).out
    command = next(line for line in out.splitlines() if line.lstrip().startswith("attnscope show"))
    _, *words = shlex.split(command)
    opened = run(*words).out
    assert words[-1] in opened
    assert "entropy" in opened


def test_zoomed_map_notes_the_remaining_attention(run, tmp_path):
    all_, part = (run.json("show", LONG, "--head", "L1H0", *zoom) for zoom in ((), ("--zoom", "40-52")))
    whole = np.array(all_["weights"], float)
    np.testing.assert_array_equal(np.array(part["weights"], float), whole[40:53, 40:53])
    assert part["queries"] == all_["queries"][40:53]
    rest = 1 - whole[40:53, 40:53].sum() / whole[40:53].sum()
    assert f"only tokens 40-52: other tokens receive {rest:.0%} of its attention" in part["notes"]
    assert "other tokens receive" in run("show", LONG, "--zoom", "40-52").out
    assert run("show", LONG, "--zoom", "40-52", "-o", tmp_path / "part.png").code == 0


PAIRS = ("it -> cat", "tired -> it")


def test_marked_cells_are_outlined_and_noted_with_their_weights(run, tmp_path):
    asked = ("show", TEXT, "--head", "L3H1", "--mark", PAIRS[0], "--mark", PAIRS[1])
    numbers = run.json(*asked[:4])
    weights, keys = numbers["weights"], numbers["keys"]
    for suffix in (".svg", ".pdf", ".png"):
        assert run(*asked, "-o", tmp_path / f"x{suffix}", "--size", "3.3").code == 0
    drawn, text = (tmp_path / "x.svg").read_text("utf-8"), " ".join(run(*asked).out.split())
    assert drawn.count('id="mark"') == 2 * len(PAIRS)  # black and white
    for row, key in (pair.split(" -> ") for pair in PAIRS):
        note = f"marked: {row} -> {key} ({weights[keys.index(row)][keys.index(key)]:.2f} in L3H1)"
        assert note in text
        assert note.replace(">", "&gt;") in drawn
    both = run(*asked[:2], "--head", "L3H1,L2H1", "--mark", "* -> -1").out
    assert "marked: * -> -1 (0.97 in L2H1, the mean of 12 rows)" in " ".join(both.split())


@pytest.mark.parametrize(
    ("more", "sentence"),
    [(("--mark", "it -> dog"), "'dog' is not in the text: its tokens are "),
     (("--mark", "cat -> it", "-m", "own-causal"), "'cat' cannot attend to 'it' in decoder attention"),
     (("--mark", "it -> [CLS]", "--hide-special"), "'it -> [CLS]' is not in this picture"),
     (("--mark", "it"), "'it' is not a question: write FROM -> TO"),
     (("--mark", "it -> cat", "-o", "x.html"), "a .html file holds maps of all tokens and heads")],
)  # fmt: skip
def test_marks_that_cannot_be_drawn_are_refused(run, more, sentence):
    run("show", TEXT, "--head", "L1H1", *more).refuses(sentence)


HALF_SEEN = """
import torch

class Strange{0}(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = (torch.nn.Linear(8, 8) for _ in range(3))

    def forward(self, x):
        scores = (self.q(x) @ self.k(x).mT).abs() + 9 * torch.eye(x.shape[1])
        return x + torch.linalg.solve(scores, self.v(x))

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(40000, 8)
        self.attend = torch.nn.MultiheadAttention(8, 2, batch_first=True)
        self.layers = torch.nn.Sequential(Strange{0}(), Strange{0}())

    def forward(self, ids):
        x = self.embed(ids)
        return self.layers(x + self.attend(x, x, x)[0])
"""


@pytest.mark.sealed
def test_show_and_stats_name_uncaptured_attention(run, tmp_path):
    (tmp_path / "half.py").write_text(HALF_SEEN.format("Attention"))
    name = f"{tmp_path}/half.py:Model"
    told = "layers 0-1, StrangeAttention: tokens also mix here, outside the attention shown"
    for command in ("show", "stats"):
        assert told in " ".join(run(command, "The cat sat.", "--model", name).out.split())
    audited = " ".join(run("info", name, "--audit").out.split())
    assert "layers 0-1, layers.* (StrangeAttention), mix tokens by attention that was not captured" in audited
    assert "2 of 3 attention calls were not captured" in audited


@pytest.mark.parametrize(("count", "listed"), [(13, 13), (14, 10)])
def test_token_list_is_complete_when_few_would_remain(run, count, listed):
    words = " ".join(["dog"] * (count - 2))
    ran = run("show", words, "--token", "1")
    assert len(re.findall(r"\d+  0\.\d\d ", ran.out.partition("is attended to by")[0])) == listed
    assert ("more, each" in ran.out) == (listed < count)


def test_token_losses_are_printed_below_the_map(run, tmp_path):
    asked = ("show", "--repeat-random", "8", "-m", "own-causal", "--loss")
    losses = run.json(*asked)["losses"]
    head = (*asked, "--head", "L1H0")
    assert run.json(*head)["losses"] == losses
    known = [each["loss"] for each in losses if each["loss"] is not None]
    assert len(known) == 16
    assert np.mean(known[:8]) > 5 * np.mean(known[8:])  # the model has induction heads
    assert [each["counts"] for each in losses] == [False] * 9 + [True] * 8 + [False]
    assert f"mean of the second half {np.mean(known[8:]):.2f}" in run(*asked).out
    (strip,) = (line for line in run(*head).out.splitlines() if line.strip().startswith("loss "))
    marks = ["▁▂▃▄▅▆▇█"[round(7 * each / max(known))] * 2 for each in known]
    assert "".join(marks) in strip
    assert run(*head, "-o", tmp_path / "loss.png").code == 0


def test_json_separates_hidden_from_masked_weights(run):
    asked = ("show", TEXT, "-m", "own-causal", "--head", "L1H0")
    whole, some = (run.json(*asked, *more) for more in ((), ("--min-weight", "0.1")))
    values = np.array(whole["weights"], float)  # not a number where masked
    np.testing.assert_array_equal(np.array(some["hidden"]), values < 0.1)
    np.testing.assert_array_equal(np.array(some["weights"], float), np.where(values < 0.1, np.nan, values))
    assert "hidden" not in whole
    share = values[values < 0.1].sum() / np.nansum(values)
    assert [note for note in some["notes"] if note not in whole["notes"]] == [
        f"hidden: cells below 0.1 (blank), {share:.0%} of the attention"
    ]


def test_chat_has_system_message_first_and_opens_a_reply(run, chat_folder):
    asked = ("show", "The cat", "-m", chat_folder, "--chat", "--system", "Be a mat.", "--head", "L0H0")
    read = "".join(run.json(*asked)["queries"])
    assert read.startswith("<|system|>")
    assert read.index("mat") < read.index("user")
    assert "assistant" not in read
    written = run.json(*asked, "--generate", "4")
    assert "assistant" in "".join(written["queries"])
    assert any("generated 4 tokens" in note for note in written["notes"])


def test_generated_tokens_are_marked_and_text_comes_first(run):
    asked = ("show", "Once upon a time", "-m", "own-causal")
    out, one = (run(*asked, "--generate", "4", *more).out for more in ((), ("--head", "L0H0")))
    read, wrote = out.splitlines()[0].split(" │ ")
    assert read.split()[-4:] == ["Once", "upon", "a", "time"]
    assert wrote
    assert one.splitlines()[0].split(" │ ") == [read, wrote]
    assert "bold from token 5 on: generated by the model" in " ".join(one.split())
    (names,) = (line for line in out.splitlines() if line.startswith("   H0"))  # thumbnails
    assert names.split() == [word for head in range(4) for word in (f"H{head}", 8 * "━")]
    assert names.index("━") - names.index("H0") == 10  # two columns each: [CLS] Once upon a time
    assert "━ above columns: generated by the model, from token 5 on" in " ".join(out.split())
    assert not re.search(" │ |━", run(*asked).out)


@pytest.fixture
def terminal(monkeypatch):
    """Tests have no terminal: browse as if they had."""
    browse = import_module("attnscope.cli.commands.browse")
    monkeypatch.setattr(browse, "has_terminal", lambda: True)


def test_missing_textual_error_says_what_to_install(run, terminal, monkeypatch):
    real = builtins.__import__

    def without(name, *rest, **more):
        if name.split(".")[0] == "textual":
            raise ModuleNotFoundError("No module named 'textual'", name="textual")
        return real(name, *rest, **more)

    for name in [name for name in sys.modules if name.startswith("attnscope.browser")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(builtins, "__import__", without)
    ran = run("browse", TEXT).refuses("Textual, which is not installed: pip install 'attnscope[browse]'")
    assert ran.err.startswith("attnscope: browsing needs")


def test_browse_refuses_missing_folder_before_loading_model(run, terminal, tmp_path):
    ran = run("browse", TEXT, "-o", tmp_path / "nowhere", "-m", "no-such-folder/at/all")
    ran.refuses("there is no such folder")


def test_browse_passes_its_options_to_the_browser(run, terminal, monkeypatch, tmp_path):
    app = pytest.importorskip("textual.app", reason="Textual is not installed")
    seen = []
    monkeypatch.setattr(app.App, "run", lambda self: seen.append(self))
    assert run("browse", TEXT, "-o", tmp_path, "--cmap", "viridis", "--scale", "row", "--words").code == 0
    (browser,) = seen
    assert (browser.folder, browser.cmap, browser.heads.selection.scale) == (tmp_path, "viridis", "row")
    assert browser.heads.selection.words


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    """A file of 12 × 12 heads with planted roles, and their letters."""
    files, letters = plant_roles(12, 12)
    path = tmp_path_factory.mktemp("planted") / "heads.npz"
    np.savez(path, **files)
    return path, letters


def test_planted_roles_are_shown_as_their_letters(run, planted):
    path, letters = planted
    for options in (("--by", "role"), ()):  # by choice, and because thumbnails are too small
        lines = run("show", "--from", path, *options).out.splitlines()
        shown = ["".join(line.split()[1:]) for line in lines if re.match(r"L\d+ +[A-Za-z]", line)]
        assert shown[:12] == letters
    assert len(re.findall(r"--head L\d+H\d+", "\n".join(lines))) == 10


def test_cells_by_a_measure_are_those_of_stats(run, planted):
    path, _ = planted
    heads = run.json("stats", "--from", path, "--sort", "offset=-3")["heads"]
    wanted = {(each["layer"], each["head"]): each["scores"]["offset=-3"]["value"] for each in heads}
    lines = run("show", "--from", path, "--by", "offset=-3").out.splitlines()
    rows = [re.findall(r"\d\.\d\d", line) for line in lines if re.match(r"L\d+ +\d", line)]
    assert rows == [[f"{wanted[layer, head]:.2f}" for head in range(12)] for layer in range(12)]
    picture = path.with_name("cells.png")
    assert run("show", "--from", path, "--by", "entropy", "-o", picture).code == 0
    assert picture.stat().st_size


@pytest.mark.parametrize("command", ["show", "stats", "compare", "flow", "browse", "export", "find", "check"])
def test_layers_may_be_named_in_the_plural(command):
    (option,) = [each for each in build(command).params if each.name == "layers"]
    assert {"--layer", "--layers"} <= {*option.opts}


def test_verbose_names_the_kernel_and_others_do_not(run):
    words = ("show", "The cat sat.", "--head", "L0H1", "--no-cache")
    assert (
        "attention: PyTorch SDPA, float32; weights recomputed from queries and keys" in run(*words, "-v").err
    )
    assert "SDPA" not in run(*words).err
