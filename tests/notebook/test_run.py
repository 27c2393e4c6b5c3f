"""The Python API: a run gives the answers of the command line, and the model's own attention."""

import base64
import io
import json
import re
import threading
from dataclasses import fields

import matplotlib
import numpy as np
import pandas
import pytest
import torch
import transformers

import attnscope
from attnscope.errors import InputError, ModelError, OutputError, SelectionError
from attnscope.models.seal import UNTESTED_NOTE
from attnscope.notebook.drawing import in_python
from attnscope.questions.answer import Beginning
from attnscope.records import plain
from tests.measures.rounding import rounded
from tests.models import speech
from tests.models.folders import gpt2, minilm, t5
from tests.models.images import picture, vision
from tests.notebook.test_watch import KeepsATable, of_numbers

matplotlib.use("Agg")
TEXT = "The cat sat on the mat because it was tired."


@pytest.fixture(scope="module")
def own():
    return attnscope.load("own")


@pytest.fixture(scope="module")
def cat(own):
    return own.read(TEXT)


DOG = TEXT.replace("cat", "dog")
LONGER = f"{TEXT} It slept. The dog was here."
SAME = [
    (lambda run: run.overview(), ["show", TEXT]),
    (
        lambda run: run.head("1.3", words=True, hide_special=True, min_weight=0.2),
        ["show", TEXT, "--head", "L1H3", "--words", "--hide-special", "--min-weight", "0.2"],
    ),
    (lambda run: run.token("cat"), ["show", TEXT, "--token", "cat"]),
    (lambda run: run.token(2, head="L2H1"), ["show", TEXT, "--token", "2", "--head", "L2H1"]),
    (lambda run: run.compare(attnscope.load("own").read(DOG)), ["compare", TEXT, "--with-text", DOG]),
    (lambda run: run.compare(), ["compare", TEXT]),
    (lambda run: run.compare(by="layer"), ["compare", TEXT, "--by", "layer"]),
    (lambda run: run.stats(), ["stats", TEXT]),
    (lambda run: run.find("it -> cat", "* -> -1"), ["find", "it -> cat", "* -> -1", TEXT]),
    (lambda run: run.flow(token="cat"), ["flow", TEXT]),
    (lambda run: run.flow("flow", hide_special=True), ["flow", TEXT, "--method", "flow", "--hide-special"]),
    (lambda run: run.spans(), ["spans", LONGER]),
    (lambda run: run.spans("line", head="L1H3"), ["spans", LONGER, "--parts", "line", "--head", "L1H3"]),
]


@pytest.mark.parametrize(("call", "command"), SAME, ids=[" ".join(command) for _, command in SAME])
def test_run_methods_return_the_numbers_of_the_commands(cat, own, run, call, command):
    read = own.read(LONGER) if LONGER in command else cat
    numbers = json.loads(json.dumps(call(read).numbers))
    assert answer(run(*command, "--json")) == rounded(numbers, len(TEXT.split()))  # tokens, at least


def test_overview_and_comparison_are_by_role_measure_or_layer(cat, own):
    assert "P previous 2, p weak 1" in repr(cat.overview(by="role"))
    assert "entropy, nats" in repr(cat.overview(by="entropy"))
    with pytest.raises(attnscope.AttnscopeError, match="leave out the other"):
        cat.compare(own.read(DOG), by="layer")


def test_run_cut_and_patch_equal_the_commands(run, tmp_path):
    name = gpt2(tmp_path)
    transformers.GPT2LMHeadModel.from_pretrained(name).save_pretrained(name)
    reader = attnscope.load(name)
    read, other, model = reader.read("A cat sat"), reader.read("A mat sat"), ["-m", name]
    pair = ["patch", "A cat sat", "--with-text", "A mat sat"]
    cut = read.cut("sat -> A", head=["L0H1", "L1H0"])
    patched = read.patch(other, what="v", noise=True)
    assert patched.numbers == read.patch("A mat sat", what="v", noise=True).numbers
    for shown, asked in (
        (cut, ["cut", "sat -> A", "A cat sat", "--head", "L0H1,L1H0"]),
        (patched, [*pair, "--what", "v", "--noise"]),
        (read.patch(other, to="L1H1:q"), [*pair, "--to", "L1H1:q"]),
        (read.patch(other, by="token"), [*pair, "--by", "token"]),
        (read.why("sat -> A", "L1H1"), ["why", "sat -> A", "A cat sat", "--head", "L1H1"]),
        (read.why("sat -> A"), ["why", "sat -> A", "A cat sat"]),
    ):
        assert answer(run(*asked, *model, "--json")) == rounded(json.loads(json.dumps(shown.numbers)))
        table = pandas.read_csv(io.StringIO(run(*asked, *model, "--csv").out))
        pandas.testing.assert_frame_equal(shown.frame(), table)
        assert shown._repr_mimebundle_()[0]["image/png"].startswith(b"\x89PNG")
    with pytest.raises(InputError, match="from another model"):
        read.patch(attnscope.load("own").read("A cat sat"))
    read.save(tmp_path / "cat.trace")
    with pytest.raises(attnscope.AttnscopeError, match="this run has no model"):
        attnscope.open(tmp_path / "cat.trace").cut("sat -> A")


def test_predictions_are_explained_in_python_as_by_commands(run, tmp_path):
    (tmp_path / "pairs.tsv").write_text("A cat sat on\tA dog sat on\n")
    read, own = attnscope.load("own-causal").read("A cat sat on"), ["-m", "own-causal"]
    for shown, asked in (
        (read.logits(target="the"), ["logits", "A cat sat on", "--target", "the"]),
        (read.logits(by="layer"), ["logits", "A cat sat on", "--by", "layer"]),
        (read.ablate(), ["ablate", "A cat sat on"]),
        (read.ablate(importance=True), ["ablate", "A cat sat on", "--importance"]),
        (read.ablate("L1H0"), ["ablate", "A cat sat on", "--head", "L1H0"]),
        (
            read.circuit("A dog sat on", faithfulness=0.5),
            ["circuit", tmp_path / "pairs.tsv", "--faithfulness=0.5"],
        ),
        (read.head("L1H0,L2H1", scale="fixed"), ["show", "A cat sat on", "--head", "L1H0,L2H1"]),
    ):
        assert answer(run(*asked, *own, "--json")) == rounded(json.loads(json.dumps(shown.numbers)), 6)
        assert "--" not in repr(shown)  # which names options
    for wrong in (lambda: read.logits(head="L1H0", by="layer"), lambda: read.ablate("L1H0", importance=True)):
        with pytest.raises(SelectionError, match="leave out head"):
            wrong()


@pytest.mark.parametrize(
    ("note", "words"),
    [
        (
            "L0H1 exists in cross attention too: --kind cross shows it",
            'its name with the kind, as "cross L0H0", shows it',
        ),
        (
            "7 of 8 calls ran in the fused pass (--exact-kernel: the model's own)",
            "7 of 8 calls ran in the fused pass",
        ),
        ("score: how strongly; --csv prints every measure", "score: how strongly; frame() has every measure"),
        (
            "20 of 32 heads, clearest role first; 12 more: --top 0",
            "20 of 32 heads, clearest role first; 12 more: numbers has all",
        ),
        ("leave out --hide-special", "leave out hide_special"),
    ],
)
def test_notes_name_python_in_place_of_options(note, words):
    assert words in in_python(note)
    assert "--" not in in_python(note)


def test_run_check_equals_the_command(cat, run):
    claims = ("L0H7.next > 0.9", "any.induction > 5", "all.coverage90 > 0")
    expected = answer(run("check", *claims, TEXT, "--json"))["claims"]
    assert [plain(verdict) for verdict in cat.check(*claims)] == expected


def answer(ran):
    """What a command answers, behind what each of its answers begins with."""
    found = json.loads(ran.out)
    begun = {each.name for each in fields(Beginning)}
    return {name: found[name] for name in found if name not in begun}


def test_console_prints_the_picture_of_the_command(cat, run, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    assert repr(cat.head("L2H1")) == run("show", TEXT, "--head", "L2H1", "--plain").out.rstrip("\n")
    assert 'run.head("L0H7")' in repr(cat)
    assert (
        repr(cat.stats())
        .splitlines()[0]
        .startswith("own · “The cat sat on the mat because it was tired.” · 4 layers")
    )


def test_head_has_scores_role_and_labels(cat):
    head = cat.head("L2H1")
    assert head.weights.shape == (13, 13)
    assert head.role.name == "previous"
    assert head.scores["previous"].value == pytest.approx(np.diag(head.weights, -1).mean(), abs=1e-6)
    assert head.queries == head.keys == cat.tokens
    np.testing.assert_array_equal(cat.head("L2H1", words=True).weights, head.weights)


def test_head_is_drawn_on_given_axes(cat):
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2)
    head = cat.head("L2H1")
    assert head.plot(ax=right, cmap="magma") is right
    assert not left.images
    np.testing.assert_allclose(np.asarray(right.images[0].get_array()), head.weights, atol=1e-6)
    assert [label.get_text() for label in right.get_yticklabels()] == list(head.queries)
    assert (left.get_title(), right.get_title()) == ("", "L2H1")  # a longer one would run into its neighbour
    assert head.plot() is plt.gca()
    figure.canvas.draw()
    plt.close(figure)


def test_stats_are_a_frame_rows_and_a_table(cat, tmp_path):
    table = cat.stats()
    frame = table.frame()
    assert isinstance(frame, pandas.DataFrame)
    assert len(frame) == len(table.heads) == len(cat.heads) == 32
    picked = frame.loc["encoder L2H1"]
    assert picked.role == "previous"
    (head,) = (head for head in table.heads if head.name == "L2H1")
    assert picked.previous == head.scores["previous"].value
    page = table._repr_html_()
    assert "<tr><th>L2H1</th><td>previous</td>" in page
    assert page.partition("</thead>")[0].count("<th>") <= 10
    assert set(table._repr_mimebundle_()[0]) == {"text/plain", "text/html"}
    assert table._repr_png_() is None
    with pytest.raises(OutputError, match="this answer is a table"):
        table.save(tmp_path / "scores.png")


def test_mime_bundle_has_image_and_text(cat, tmp_path):
    assert set(cat._repr_mimebundle_()[0]) == {"text/plain", "text/html"}
    for shown in (cat.head("L2H1"), cat.token("cat")):
        bundle, described = shown._repr_mimebundle_()
        assert "attention weight" in described["image/png"]["alt"]
        assert bundle["image/png"].startswith(b"\x89PNG")
        assert bundle["text/plain"] == repr(shown)
    cat.head("L2H1").save(tmp_path / "head.svg")
    assert (tmp_path / "head.svg").read_text().startswith("<?xml")


def test_word_of_several_byte_tokens_matches_as_written(tmp_path):
    text = "für ins Café, 我我 def f(x):\n  x"
    read = attnscope.load(gpt2(tmp_path / "m")).read(text)
    assert f"“{text[:40]}" in str(read.overview()).replace("⏎", "\n")
    weights = read.head("L1H2").weights
    assert read.tokens[:8] == ("f", "ü", "ü", "r", " ", "in", "s", " ")
    looks, looked = slice(0, 4), slice(4, 7)
    (answer,) = read.find("ins -> für").numbers["questions"]
    (head,) = [each for each in answer["heads"] if (each["layer"], each["head"]) == (1, 2)]
    assert head["weight"] == pytest.approx(weights[looked, looks].sum(1).mean(), abs=1e-6)
    assert read.token("Café", words=True).numbers["token"] == {"text": "Café", "position": 7}
    for old in ("füür", "Caféé"):
        with pytest.raises(SelectionError):
            read.find(f"{old} -> für")
        with pytest.raises(SelectionError):
            read.token(old, words=True)
    with pytest.raises(SelectionError, match=r"'Café' is 6 tokens: .* join them with --words"):
        read.token("Café")
    read.save(tmp_path / "maps.npz")
    assert attnscope.open(tmp_path / "maps.npz").token("Café", words=True).numbers["token"]["text"] == "Café"


def test_attention_kinds_are_saved_as_one_picture(tmp_path):
    both = attnscope.load(t5(tmp_path)).read("The cat sat.", "It slept.")
    (out := tmp_path / "out").mkdir()
    both.save(out / "both.png")
    (saved,) = out.iterdir()
    assert saved.read_bytes() == both._repr_png_()
    (shown,) = re.findall('src="data:image/png;base64,(.+?)"', both._repr_html_())
    assert base64.b64decode(shown) == saved.read_bytes()
    assert {head.kind for head in both.heads} == {"encoder", "decoder", "cross"}
    cross = both.head("cross L0H1")
    assert cross.weights.shape == (len(cross.queries), len(cross.keys))


def test_saved_run_opens_unchanged(cat, tmp_path):
    cat.save(tmp_path / "cat.trace")
    again = attnscope.open(tmp_path / "cat.trace")
    assert again.tokens == cat.tokens
    np.testing.assert_array_equal(again.head("L3H5").weights, cat.head("L3H5").weights)
    assert again.stats().rows == cat.stats().rows
    assert again.notes[-1].startswith("from cat.trace: a trace of ")
    for name in ("cat.html", "cat.npz", "cat.png"):
        cat.save(tmp_path / name)
    weights = attnscope.open(tmp_path / "cat.npz")
    np.testing.assert_allclose(weights.head("L3H5").weights, cat.head("L3H5").weights, atol=1e-6)
    with pytest.raises(OutputError, match=r"its name must end in one of \.trace, \.html, "):
        cat.save(tmp_path / "cat.docx")
    with pytest.raises(InputError, match="no such file"):
        attnscope.open(tmp_path / "no.trace")


def test_wrapped_model_reads_like_its_folder_and_keeps_training(tmp_path):
    folder = gpt2(tmp_path)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder).train()
    model.transformer.h[0].eval()
    wrapped = attnscope.wrap(model, transformers.AutoTokenizer.from_pretrained(folder))
    read, loaded = (reader.read("The cat sat.") for reader in (wrapped, attnscope.load(folder)))
    for head in ("L0H0", "L1H3"):
        np.testing.assert_allclose(read.head(head).weights, loaded.head(head).weights, atol=1e-6)
    assert len(wrapped.read("The cat", generate=3).tokens) > len(wrapped.read("The cat").tokens)
    assert (model.training, model.transformer.h[0].training) == (True, False)


class Around(torch.nn.Module):
    """What holds models, as a classifier or a trainer does, and perhaps their tokenizer."""

    def __init__(self, tokenizer=None, **parts):
        super().__init__()
        self.tokenizer, self.parts = tokenizer, torch.nn.ModuleDict(parts)
        self.last = torch.nn.Linear(2, 2)


@pytest.mark.parametrize("form", ["beside", "given", "parallel"])
def test_wrapped_module_reads_text_with_its_inner_model(tmp_path, form):
    folder = gpt2(tmp_path)
    model, tokenizer = (
        each.from_pretrained(folder) for each in (transformers.AutoModel, transformers.AutoTokenizer)
    )
    outer = torch.nn.DataParallel(model) if form == "parallel" else Around(tokenizer, body=model)
    run = attnscope.wrap(outer, None if form == "beside" else tokenizer).read(TEXT)
    path = "module" if form == "parallel" else "parts.body"
    assert f"{path} reads the text, the model inside of {type(outer).__name__}" in run.notes
    weights = attnscope.load(folder).read(TEXT).head("L1H2").weights
    np.testing.assert_array_equal(run.head("L1H2").weights, weights)


def test_wrapped_module_with_several_models_names_them(tmp_path):
    folder = gpt2(tmp_path)
    towers = {name: transformers.AutoModel.from_pretrained(folder) for name in ("seen", "read")}
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    with pytest.raises(InputError, match=r"holds several models, parts\.seen, parts\.read: wrap the one"):
        attnscope.wrap(Around(**towers), tokenizer)
    with pytest.raises(InputError, match="has no tokenizer"):
        attnscope.wrap(Around(**towers)).read(TEXT)


def test_wrapped_module_takes_tokenizer_of_either_library(tmp_path):
    slow = transformers.AutoTokenizer.from_pretrained(minilm())
    shown = [attnscope.wrap(ReadsWords(), each).read(TEXT) for each in (slow, slow.backend_tokenizer)]
    assert shown[0].tokens == shown[1].tokens == ("[CLS]", *TEXT[:-1].split(), ".", "[SEP]")


class ReadsWords(torch.nn.Module):
    """A module of one's own that attends."""

    def __init__(self):
        super().__init__()
        self.embed, self.attend = torch.nn.Embedding(30522, 8), torch.nn.MultiheadAttention(8, 2)

    def forward(self, ids):
        return self.attend(*[self.embed(ids)] * 3)[0]


def test_wrapped_module_without_tokenizer_reads_tensors():
    module = torch.nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)
    reader, given = attnscope.wrap(module), torch.randn(1, 5, 16, generator=torch.manual_seed(0))
    read = reader.read({"src": given})
    module.eval()
    _, expected = module.self_attn(given, given, given, need_weights=True, average_attn_weights=False)
    np.testing.assert_allclose(read.head("L0H2").weights, expected[0, 2].detach().numpy(), atol=1e-6)
    with pytest.raises(InputError, match="has no tokenizer: wrap it with one"):
        reader.read("The cat")


@pytest.mark.parametrize("order", [("one", "other"), ("other", "one")], ids=" ends before ".join)
def test_training_mode_returns_after_last_of_two_threads(order):
    begun, ends = ({name: threading.Event() for name in order} for _ in range(2))
    trained = []

    class Waiting(torch.nn.TransformerEncoderLayer):
        def forward(self, src):
            name = threading.current_thread().name
            begun[name].set()
            ends[name].wait(30)
            trained.append(self.training or self.self_attn.training)
            return super().forward(src)

    module = Waiting(16, 4, 32, batch_first=True)
    module.linear1.eval()
    before = [part.training for part in module.modules()]
    reader, given = attnscope.wrap(module), {"src": torch.randn(1, 5, 16)}
    threads = {}
    for name in ("one", "other"):
        threads[name] = threading.Thread(target=reader.read, args=(given,), name=name)
        threads[name].start()
        assert begun[name].wait(30)
    for name in order:
        ends[name].set()
        threads[name].join()
    assert not any(trained)
    assert [part.training for part in module.modules()] == before


def test_wrapped_module_takes_a_custom_tokenizer():
    assert attnscope.wrap(KeepsATable(), of_numbers()).read("2 3 2").head("L0H1").keys == ("2", "3", "2")


def test_training_step_inside_record_block_is_recorded():
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True)
    module = torch.nn.TransformerEncoder(layer, 2)
    given = torch.randn(2, 5, 16)
    with attnscope.record(module, tokens=list("abcda")) as run:
        with pytest.raises(attnscope.AttnscopeError, match="its with block has not ended"):
            run.head("L0H0")
        for _ in range(3):
            module(given).sum().backward()
    assert module.training
    averaged = "scores are means over 2 texts of the batch: run.part(0) shows one"
    unasked = UNTESTED_NOTE.format(reason="the model was in training mode")
    assert run.notes == ("the last of 3 passes: run.passes has each", averaged, unasked)
    assert len(run.passes) == 3
    assert run.tokens == tuple("abcda")
    assert run.head("L1H3").weights.shape == (5, 5)
    first = module.layers[0].self_attn
    _, expected = first(given, given, given, average_attn_weights=False)
    expected = expected.mean(0)[2].detach().numpy()
    np.testing.assert_allclose(run.head("L0H2").weights, expected, atol=1e-6)
    assert "duplicate" in run.stats().heads[0].scores


def test_recorded_generation_loop_is_one_text(tmp_path):
    model = transformers.AutoModelForCausalLM.from_pretrained(gpt2(tmp_path)).eval()
    ids = torch.tensor([[5, 6, 7]])
    with torch.no_grad(), attnscope.record(model) as run:
        cache = None
        for _ in range(3):
            output = model(ids, past_key_values=cache, use_cache=True)
            cache, ids = output.past_key_values, output.logits[:, -1:].argmax(-1)
    weights = run.head("L1H0").weights
    assert weights.shape == (5, 5)
    assert not np.triu(weights, 1).any()


def test_block_without_attention_is_refused_and_own_errors_pass():
    linear = torch.nn.Linear(2, 2)
    with pytest.raises(ModelError, match="Linear has no attention to show"), attnscope.record(linear):
        pass
    with pytest.raises(ZeroDivisionError), attnscope.record(linear):
        raise ZeroDivisionError


def test_reader_takes_image_and_sound_with_transcript(tmp_path):
    dinov2 = attnscope.load(vision(tmp_path / "dinov2", "dinov2"))
    assert "patches" in dinov2.read(image=picture(tmp_path / "a.png")).token("1,1").numbers
    whisper = attnscope.load(speech.whisper(tmp_path / "whisper"))
    run = whisper.read("The cat sat.", audio=speech.sound(tmp_path / "tone.wav"))
    assert run.head("cross L0H1").weights.shape[1] == speech.FRAMES


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda run: run.head("L9H9"), "no head L9H9: this model has layers 0-3, heads 0-7"),
        (lambda run: run.head(3), "3 is not a head: write its address, like 'L2H1'"),
        (lambda run: run.token(99), "no token '99'"),
        (lambda run: run.compare("x"), "'x' is not a run"),
        (lambda run: run.find(3), "3 is not a text: write a question"),
        (lambda run: run.check(3), "3 is not a text: write a claim"),
        (lambda run: run.flow("x"), "no method 'x': there are rollout, flow"),
        (lambda run: run.spans("page"), "modality, role or group, not by 'page'"),
        (lambda run: run.spans("role"), "holds no chat"),
        (lambda _: attnscope.load("own").read("The cat", " "), "the text is empty: give at least one word"),
    ],
)
def test_invalid_call_is_one_sentence_without_traceback(cat, call, sentence):
    with pytest.raises(attnscope.AttnscopeError) as raised:
        call(cat)
    (line,) = raised.value._render_traceback_()
    assert sentence in line


def test_selected_measures_equal_those_of_all(cat):
    few = cat.stats(measures=["previous", "entropy"])
    every = {head.address: head.scores for head in cat.stats().heads}
    assert all(set(head.scores) == {"previous", "entropy"} for head in few.heads)
    assert all(head.scores["previous"] == every[head.address]["previous"] for head in few.heads)
    assert "previous" in repr(few)


@pytest.mark.parametrize(("share", "trains", "texts"), [(0.1, True, 3), (0.0, True, 1), (0.1, False, 1)])
def test_recording_notes_dropout_and_batch_means(share, trains, texts):
    module = torch.nn.TransformerEncoderLayer(16, 2, 32, dropout=share, batch_first=True).train(trains)
    with torch.no_grad(), attnscope.record(module) as run:
        module(torch.randn(texts, 5, 16))
    assert any("dropout was on" in note for note in run.notes) == (share > 0 and trains)
    assert any(f"means over {texts} texts of the batch" in note for note in run.notes) == (texts > 1)
