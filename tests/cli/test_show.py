"""``attnscope show`` as a user meets it."""

import json
import re
import shlex
import subprocess
import sys

import numpy as np
import pytest
import torch
import transformers

from tests.models.folders import minilm

TEXT = "The cat sat on the mat because it was tired."


def test_the_first_command_shows_every_head_and_the_ones_worth_a_look(run):
    ran = run("show", TEXT)
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.startswith("own · “The cat sat on the mat because…” · encoder attention\n")
    assert "4 layers × 8 heads · 13 tokens" in ran.out
    assert "Worth a look" in ran.out


def test_a_pipe_gets_no_escape_codes_and_no_line_that_is_too_wide(run):
    for arguments in (["--head", "L1H1"], ["--layer", "0"], ["--token", "cat"]):
        out = run("show", TEXT, *arguments).out
        assert "\x1b" not in out
        assert max(len(line) for line in out.splitlines()) <= 80


def test_the_command_beside_a_head_opens_that_head(run):
    out = run("show", TEXT, "-m", minilm()).out
    command = next(line.strip() for line in out.splitlines() if line.strip().startswith("attnscope show"))
    words = shlex.split(command)
    opened = run(*words[1:])
    assert opened.code == 0
    assert words[-1] in opened.out
    assert "entropy" in opened.out


def test_one_head_is_shown_with_its_tokens_and_figures(run):
    out = run("show", TEXT, "-m", minilm(), "--head", "0.2").out
    assert "L0H2" in out
    assert "looks at the previous token (1.00, baseline 0.08)" in out
    assert "because" in out
    assert "confidence" in out


def test_several_heads_stand_side_by_side_as_far_as_there_is_room(run):
    out = run("show", "The cat sat.", "--head", "L0H2,1.5,L3H0").out.splitlines()
    named = next(line for line in out if "L0H2" in line)
    assert "L1H5" in named
    assert sum("rows look at columns" in line for line in out) == 1
    assert max(map(len, out)) <= 80


def test_a_token_is_ranked_both_ways(run):
    out = run("show", TEXT, "--token", "cat").out
    assert "cat (token 2) looks at" in out
    assert "cat (token 2) is looked at by" in out


def test_an_untrained_encoder_says_so(run, tmp_path):
    from attnscope.network.folder import save_encoder, untrained

    save_encoder(tmp_path / "new", *untrained())
    for arguments in ([], ["--head", "L0H0"], ["--token", "cat"]):
        assert "untrained" in run("show", TEXT, "-m", tmp_path / "new", *arguments).out


def test_json_holds_the_weights_of_a_head_and_nothing_else(run):
    answer = json.loads(run("show", TEXT, "-m", minilm(), "--head", "L0H2", "--json").out)
    assert answer["queries"][1:3] == ["The", "cat"]
    assert answer["weights"][2][1] == pytest.approx(1, abs=0.01)
    assert answer["head"]["role"]["name"] == "previous"
    assert answer["site"]["name"] == "encoder.layer.0.attention.self"


def test_json_of_a_causal_head_has_nothing_where_the_mask_closed(run, causal_folder):
    answer = json.loads(run("show", TEXT, "-m", causal_folder, "--head", "L0H0", "--json").out)
    assert answer["weights"][0][1] is None
    assert answer["weights"][0][0] == 1


def test_json_of_everything_has_the_figures_of_every_head(run):
    answer = json.loads(run("show", TEXT, "-m", minilm(), "--json").out)
    assert len(answer["heads"]) == 72
    assert len(answer["sites"]) == 6
    assert answer["heads"][2]["figures"]["previous"]["value"] == pytest.approx(1, abs=0.01)


@pytest.mark.parametrize("suffix", [".png", ".svg", ".pdf"])
def test_a_picture_is_saved_instead_of_printed(run, tmp_path, suffix):
    ran = run("show", TEXT, "--head", "L0H0", "-o", tmp_path / f"head{suffix}")
    assert (ran.code, ran.out) == (0, "")
    assert f"saved {tmp_path / 'head'}{suffix}" in ran.err
    start = (tmp_path / f"head{suffix}").read_bytes()[:100]
    assert {".png": b"\x89PNG", ".svg": b"<?xml", ".pdf": b"%PDF"}[suffix] in start


def test_all_heads_are_saved_as_arrays_that_numpy_reads(run, tmp_path):
    assert run("show", TEXT, "-m", minilm(), "-o", tmp_path / "heads.npz").code == 0
    with np.load(tmp_path / "heads.npz", allow_pickle=False) as arrays:
        assert arrays["encoder.05"].shape == (12, 13, 13)
        np.testing.assert_allclose(arrays["encoder.00"][2, range(2, 13), range(1, 12)], 1, atol=0.02)
        assert arrays["tokens"].tolist()[:3] == ["[CLS]", "The", "cat"]


def test_all_heads_are_saved_as_one_page_without_anything_from_elsewhere(run, tmp_path):
    assert run("show", TEXT, "-o", tmp_path / "heads.html").code == 0
    page = (tmp_path / "heads.html").read_text("utf-8")
    assert "because" in page
    assert "default-src 'none'" in page
    assert "src=" not in page
    assert "href=" not in page


def test_each_kind_of_attention_has_its_own_picture(run, tmp_path, pair_folder):
    run("show", TEXT, "It slept.", "-m", pair_folder, "-o", tmp_path / "all.png")
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "all-cross.png",
        "all-decoder.png",
        "all-encoder.png",
    ]


def test_a_line_of_a_file_of_pairs_is_a_pair(run, tmp_path):
    (tmp_path / "pairs.tsv").write_text("A cat sat.\tA cat was sitting.\n")
    answer = json.loads(
        run("show", "-f", tmp_path / "pairs.tsv", "--line", "1", "--head", "0.0", "--json").out
    )
    assert answer["queries"].count("[SEP]") == 2


def test_words_and_hidden_special_tokens(run):
    out = run("show", TEXT, "--head", "L0H0", "--words", "--hide-special").out
    assert "[CLS]" not in out
    assert "special tokens hidden: they take" in out


LONG = "The cat sat on the mat because it was tired. " * 8


def test_a_part_of_a_map_is_shown_with_what_the_rest_takes(run, tmp_path):
    whole = np.array(json.loads(run("show", LONG, "--head", "L1H0", "--json").out)["weights"], float)
    part = json.loads(run("show", LONG, "--head", "L1H0", "--zoom", "40-52", "--json").out)
    np.testing.assert_array_equal(np.array(part["weights"], float), whole[40:53, 40:53])
    assert part["queries"] == json.loads(run("show", LONG, "--head", "L1H0", "--json").out)["queries"][40:53]
    rest = 1 - whole[40:53, 40:53].sum() / whole[40:53].sum()
    assert f"tokens 40-52 alone: other tokens take {rest:.0%} of its attention" in part["notes"]
    assert "other tokens take" in run("show", LONG, "--zoom", "40-52").out
    assert run("show", LONG, "--zoom", "40-52", "-o", tmp_path / "part.png").code == 0


def test_a_text_that_is_cut_says_so(run):
    ran = run("show", "cat " * 2000, "--truncate", "--layer", "0")
    assert ran.code == 0
    assert "cut: the first 512 of 2,002 tokens are shown" in ran.out


def test_an_error_that_nobody_expected_is_still_one_sentence(run, monkeypatch):
    def broken(*arguments, **keywords):
        raise RuntimeError("the \x1b[31mroof\nfell")

    monkeypatch.setattr("attnscope.models.load", broken)
    ran = run("show", TEXT)
    assert ran.code == 2
    assert ran.err.startswith(
        "attnscope: unexpected RuntimeError: the \N{REPLACEMENT CHARACTER}[31mroof fell"
    )


def test_tokens_cannot_steer_a_terminal(run):
    for text in ("\x1b[2J\x1b[31mred", "[bold]x[/bold] [/red]", "a\x07b\x9bc\u202ed"):
        for arguments in (["--head", "L0H0"], ["--token", "1"], []):
            ran = run("show", text, *arguments)
            assert ran.code == 0
            assert not any(character in ran.out for character in "\x1b\x07\x9b\u202e")


@pytest.mark.subprocess
def test_the_command_is_installed_and_the_module_runs_too():
    ran = subprocess.run(
        [sys.executable, "-m", "attnscope", "--version"], capture_output=True, text=True, check=True
    )
    assert ran.stdout.startswith("attnscope ")


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
        self.layers = torch.nn.ModuleList(Strange{0}() for _ in range(2))

    def forward(self, ids):
        x = self.embed(ids)
        x = x + self.attend(x, x, x)[0]
        for layer in self.layers:
            x = layer(x)
        return x
"""


def test_show_and_stats_say_what_looks_like_attention_and_was_not_captured(run, tmp_path):
    (tmp_path / "half.py").write_text(HALF_SEEN.format("Attention"))
    name = f"{tmp_path}/half.py:Model"
    told = "layers.0 (StrangeAttention) and 1 more look like attention that was not captured: attnscope info"
    for command in ("show", "stats"):
        ran = run(command, "The cat sat.", "--model", name)
        assert told in " ".join((ran.out + ran.err).split())
    audited = " ".join(run("info", name, "--audit").out.split())
    assert "layers 0-1, layers.* (StrangeAttention), mix tokens by attention that was not captured" in audited
    assert "2 of 3 attention calls were not captured" in audited
    (tmp_path / "other.py").write_text(HALF_SEEN.format("Block"))
    ran = run("stats", "The cat sat.", "--model", f"{tmp_path}/other.py:Model")
    assert "looks like attention" not in ran.out + ran.err


def test_random_weights_have_no_head_worth_a_look(run, tmp_path):
    """Weights as transformers makes them attend nearly evenly: no pattern is named where there is none."""
    torch.manual_seed(0)
    model = transformers.AutoModel.from_config(transformers.AutoConfig.from_pretrained(minilm()))
    model.save_pretrained(tmp_path)
    transformers.AutoTokenizer.from_pretrained(minilm()).save_pretrained(tmp_path)
    words = run("show", TEXT, "-m", tmp_path).out
    assert "no head stands out from even attention" in words
    assert "Worth a look" not in words


def test_a_text_of_few_tokens_names_no_pattern(run):
    assert "too few tokens to name patterns: try a sentence" in run("show", "The cat sat").out
    ran = run("show", TEXT)
    assert ran.out.count("attnscope show") == 5
    assert "too few tokens" not in ran.out


@pytest.mark.parametrize(("count", "listed"), [(13, 13), (14, 10)])
def test_a_token_lists_all_others_where_few_are_left(run, count, listed):
    words = " ".join(["dog"] * (count - 2))
    ran = run("show", words, "--token", "1")
    assert len(re.findall(r"\d+  0\.\d\d ", ran.out.partition("is looked at by")[0])) == listed
    assert ("more, each" in ran.out) == (listed < count)


NEURONS = (TEXT, "--head", "L2H0", "--pair", "it -> cat", "--neurons")


def test_a_score_is_printed_by_dimension_and_told_in_full_with_json(run):
    out = run("show", *NEURONS).out
    assert out.startswith("L2H0 · it 8 → cat 2 · own")
    answer = json.loads(run("show", *NEURONS, "--json").out)
    total = float(re.search(r"^= the score +([+-][\d.]+)", out, re.MULTILINE)[1])
    assert total == pytest.approx(answer["score"], abs=5e-4)
    assert sum(each["product"] for each in answer["dimensions"]) == pytest.approx(answer["score"])
    shown = json.loads(run("show", TEXT, "--head", "L2H0", "--json").out)
    assert answer["weight"] == pytest.approx(shown["weights"][8][2], abs=1e-6)


def test_a_score_by_dimension_is_saved_as_a_picture_with_the_largest_dimensions(run, tmp_path):
    assert run("show", *NEURONS, "-o", tmp_path / "score.svg").code == 0
    drawn = (tmp_path / "score.svg").read_text("utf-8")
    assert len(re.findall(r"<!-- (\d+): ([+-][\d.]+) × ([+-][\d.]+) -->", drawn)) == 8


def test_the_loss_of_each_token_stands_under_the_map(run, tmp_path):
    asked = ("show", "--repeat-random", "8", "-m", "own-causal", "--loss")
    losses = json.loads(run(*asked, "--json").out)["losses"]
    head = json.loads(run(*asked, "--head", "L1H0", "--json").out)
    assert head["losses"] == losses
    known = [each["loss"] for each in losses if each["loss"] is not None]
    assert len(known) == 16
    assert np.mean(known[:8]) > 5 * np.mean(known[8:])  # the model has induction heads
    assert f"mean {np.mean(known):.2f}" in run(*asked).out
    (strip,) = (
        line for line in run(*asked, "--head", "L1H0").out.splitlines() if line.strip().startswith("loss ")
    )
    marks = ["▁▂▃▄▅▆▇█"[round(7 * each / max(known))] * 2 for each in known]
    assert "".join(marks) in strip
    assert run(*asked, "--head", "L1H0", "-o", tmp_path / "loss.png").code == 0


def test_the_mean_of_a_head_over_prompts_stands_on_the_slots_of_their_template(run, tmp_path):
    table = tmp_path / "names.tsv"
    table.write_text("A\tB\nking\tqueen\nhouse\triver\n")
    asked = ("show", "The {A} saw the {B}", "--prompts", table, "-m", "own-causal", "--head", "L1H0")
    answer = json.loads(run(*asked, "--json").out)
    assert answer["keys"] == ["[CLS]", "The", "{A}", "saw", "the", "{B}", "[SEP]"]
    assert np.nansum(np.array(answer["weights"], float), -1) == pytest.approx(1, abs=1e-5)
    assert "2 prompts of “The {A} saw the {B}”" in " ".join(run(*asked).out.split())
    assert run(*asked, "-o", tmp_path / "mean.png").code == 0


def test_numbers_tell_a_hidden_weight_from_a_masked_one(run):
    asked = ["show", TEXT, "-m", "own-causal", "--head", "L1H0", "--json"]
    whole, some = (json.loads(run(*asked, *more).out) for more in ([], ["--min-weight", "0.1"]))
    values = np.array(whole["weights"], float)  # not a number where masked
    np.testing.assert_array_equal(np.array(some["hidden"]), values < 0.1)
    np.testing.assert_array_equal(np.array(some["weights"], float), np.where(values < 0.1, np.nan, values))
    assert "hidden" not in whole
    share = values[values < 0.1].sum() / np.nansum(values)
    assert [note for note in some["notes"] if note not in whole["notes"]] == [
        f"hidden: cells below 0.1 (blank), {share:.0%} of the attention"
    ]
