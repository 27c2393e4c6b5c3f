"""Corpus scores equal those of single texts, however read, batched, stopped or shared."""

import io
import json
import sys
import weakref
from types import SimpleNamespace

import pytest

from attnscope.attention import Attention
from attnscope.capture import FUSED
from attnscope.capture.rows.scores import mix
from attnscope.errors import InputError, SelectionError
from attnscope.fused.fused_pass import FusedPass
from attnscope.measures import Measurement
from attnscope.models import load
from attnscope.models.inputs import Limit, batches, join_texts
from attnscope.questions import corpus
from attnscope.questions.corpus import CorpusRun, windows
from attnscope.questions.corpus_stats import corpus_stats
from attnscope.questions.gold import find_gold
from attnscope.questions.selection import Selection
from attnscope.questions.stats import ALL_FUSED
from attnscope.storage.checkpoint import write_checkpoint
from attnscope.storage.corpus import CorpusText, ListedTexts, read_corpus
from attnscope.storage.gold import read_gold
from tests.cli.test_every_architecture import family
from tests.measures.rounding import near
from tests.models.folders import gpt2, minilm, t5
from tests.questions.gold import treebank
from tests.test_text import HOSTILE, steering

TEXTS = [
    "The cat sat on the mat because it was tired.",
    "It slept.",
    "The dog sat on the rug because it was bored, and it barked!",
    "She slept.",
    "Who saw the dog on the mat? Nobody did.",
    "The cat saw the dog because it was awake.",
    "Then they all went home, and the cat sat on the mat again.",
] * 2


def one_by_one(model, texts):
    """A pass a text, added up."""
    measured = Measurement()
    for text in texts:
        model.run(model.prepare(text, limit=Limit(truncate=True)), [measured])
    return measured.scores()


def assert_same(found, expected, keys=20):
    """Scores of texts of so many tokens; the bundled encoder reads the longest of ``TEXTS`` as 20."""
    assert [(head.site.layer, head.site.kind, head.head) for head in found] == [
        (head.site.layer, head.site.kind, head.head) for head in expected
    ]
    for one, other in zip(found, expected, strict=True):
        assert one.scores.keys() == other.scores.keys()
        for name, score in other.scores.items():
            mine = one.scores[name]
            assert (mine.rows, mine.texts) == (score.rows, score.texts), name
            assert mine.value == near(score.value, name, keys), name
            assert mine.baseline == pytest.approx(score.baseline, rel=1e-12, abs=1e-12), name
            assert mine.error == (score.error and near(score.error, name, keys)), name


@pytest.fixture(scope="module")
def alone(own):
    """The scores of all texts, each in a pass of its own."""
    return one_by_one(own, TEXTS)


@pytest.mark.sweep(2)
@pytest.mark.parametrize("make", [gpt2, t5])
def test_corpus_scores_equal_texts_one_by_one(tmp_path, make):
    model = load(make(tmp_path))
    seen = corpus_stats(model, ListedTexts(TEXTS), run=CorpusRun(truncate=True))
    assert_same(seen.heads, one_by_one(model, TEXTS))
    assert f"{len(TEXTS)} texts, " in seen.title


@pytest.mark.parametrize("name", ["own", minilm()], ids=["the bundled encoder", "MiniLM"])
def test_short_texts_in_fused_pass_agree_with_float64(name):
    model = load(name)
    seen = corpus_stats(model, ListedTexts(TEXTS))
    assert seen.ran == ALL_FUSED
    assert seen.title.endswith(" · fused pass")
    assert ALL_FUSED not in seen.shown_notes  # the title says it
    model.module.double()
    exact = corpus_stats(model, ListedTexts(TEXTS), exact_kernel=True)
    assert exact.ran == "every call ran in the model's own kernel"
    assert_same(seen.heads, exact.heads)


def test_call_computed_by_rows_is_reported_as_fused_pass(own):
    keep = list[Attention]()
    observer = SimpleNamespace(observe=keep.append)
    own.run(own.prepare(TEXTS[0]), [observer], FusedPass(rows=True))
    assert {(seen.kernel, seen.source, seen.refusal) for seen in keep} == {(FUSED, "kernel", None)}


def test_kernel_output_is_used_where_rows_disagree(own, monkeypatch):
    exact = corpus_stats(own, ListedTexts(TEXTS), exact_kernel=True)
    monkeypatch.setattr("attnscope.capture.rows.kernels.mix", lambda *given: 0 * mix(*given))
    monkeypatch.setattr("attnscope.capture.rows.scores.mix", lambda *given: 0 * mix(*given))
    seen = corpus_stats(own, ListedTexts(TEXTS))
    assert seen.ran == "every call ran in the model's own kernel"
    assert seen.heads == exact.heads


def test_long_texts_of_equal_length_share_a_fused_pass(tmp_path):
    model = load(gpt2(tmp_path, n_positions=600, n_layer=1))
    texts = [" ".join([text] * 60) for text in TEXTS[:3]]
    seen = corpus_stats(model, ListedTexts(texts), run=CorpusRun(truncate=True))
    assert seen.ran == ALL_FUSED  # two texts of 600 tokens, and a shorter one
    beside = corpus_stats(model, ListedTexts(texts), run=CorpusRun(truncate=True), exact_kernel=True)
    assert "own kernel" in beside.ran
    assert_same(seen.heads, beside.heads, keys=600)
    assert_same(beside.heads, one_by_one(model, texts), keys=600)


@pytest.mark.sweep(3)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("asked", "window", "every", "stop"),
    [("stats", 4, 20.0, 10), ("stats", 8192, 0.0, 2), ("stats", 8192, 0.0, 11), ("gold", 8192, 0.0, 7)],
)
def test_resumed_corpus_run_is_bit_identical(own, alone, monkeypatch, tmp_path, asked, window, every, stop):
    """Sums are saved after a window, and inside of one when the time has come."""
    monkeypatch.setattr("attnscope.models.inputs.BATCH_TOKENS", 20)
    monkeypatch.setattr("attnscope.questions.corpus.WINDOW_TEXTS", window)
    monkeypatch.setattr("attnscope.questions.corpus.SAVING_SECONDS", every)
    corpus, bank = ListedTexts([*TEXTS, "too long " * 600]), tmp_path / "bank.conllu"
    bank.write_text(treebank.conllu() * 3, "utf-8")
    file, counted = tmp_path / "sums.json", []

    def ask(**how):
        if asked == "gold":
            return find_gold(own, read_gold(bank), held_out=True, run=CorpusRun(**how))
        stats = corpus_stats(own, corpus, run=CorpusRun(**how))
        return stats.heads, stats.title, stats.ran, stats.notes

    def end(progress):
        if progress.texts >= stop:
            raise KeyboardInterrupt

    def saved():
        return json.loads(file.read_text())["state"]["progress"]

    whole = ask()
    if asked == "stats":
        assert_same(whole[0], alone)
    with pytest.raises(KeyboardInterrupt):
        ask(checkpoint=file, watch=end)
    kept = saved()
    if every:
        assert (kept["texts"], kept["batches"], kept["entries"]) == (8, [], 8)
    else:
        assert 0 < kept["texts"] < len(TEXTS)
        assert kept["batches"]
        assert (kept["entries"], kept["skipped"]) == (0, 0)  # counted again with the window
    assert ask(checkpoint=file, watch=lambda now: counted.append(now.texts)) == whole
    assert min(counted) > kept["texts"]
    assert ask(checkpoint=file, watch=lambda now: pytest.fail("a pass ran")) == whole
    assert saved()["batches"] == []


FOUR = ListedTexts(TEXTS[:4])


@pytest.fixture(scope="module")
def kept(own, tmp_path_factory):
    """What a run over four texts leaves: its scores, and the bytes of its checkpoint."""
    file = tmp_path_factory.mktemp("kept") / "sums.json"
    return corpus_stats(own, FOUR, run=CorpusRun(checkpoint=file)), file.read_bytes()


@pytest.fixture
def sums(kept, tmp_path):
    """The checkpoint of that run, which a test may change."""
    file = tmp_path / "sums.json"
    file.write_bytes(kept[1])
    return file


@pytest.mark.sweep(4)
@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"model": "own-causal"}, "another model:"),
        ({"corpus": ListedTexts(TEXTS[1:])}, "another corpus:"),
        ({"names": ("entropy",)}, "another set of measures:"),
        ({"selection": Selection(layers=(1,))}, "another selection of heads:"),
        ({"limit": 5}, "another limit:"),
        ({"exact_kernel": True, "limit": 5}, "another limit and kernel:"),
    ],
)
def test_checkpoint_of_another_run_is_refused(sums, change, sentence):
    asked = {"model": "own", "corpus": FOUR, "limit": None} | change
    model, run = load(asked.pop("model")), CorpusRun(checkpoint=sums, limit=asked.pop("limit"))
    with pytest.raises(InputError, match=f"belongs to a run with {sentence}"):
        corpus_stats(model, run=run, **asked)


@pytest.mark.parametrize("content", [b"", b"\xff", b"[]", b"{}", b'{"attnscope checkpoint": 9}', None])
def test_damaged_checkpoint_is_refused(own, sums, content):
    if content is None:  # one number was changed
        content = sums.read_bytes().replace(b'"texts": 4', b'"texts": 3')
    sums.write_bytes(content)
    with pytest.raises(InputError, match="is not a checkpoint of attnscope"):
        corpus_stats(own, FOUR, run=CorpusRun(checkpoint=sums))
    assert sums.read_bytes() == content


def test_unreadable_texts_are_reported_by_line_and_skipped(own, tmp_path):
    path = tmp_path / "a.jsonl"
    lines = [json.dumps({"text": text}) for text in (TEXTS[0], "too long " * 600, TEXTS[1])]
    path.write_text("\n".join([lines[0], "oops", *lines[1:]]), "utf-8")
    said = []
    seen = corpus_stats(own, read_corpus(path), exact_kernel=True, run=CorpusRun(report=said.append))
    assert [sentence.split(":")[0] for sentence in said] == ["line 2", "line 3"]
    assert "reads at most 512" in said[1]
    assert "2 texts could not be read: line 2, line 3" in seen.notes
    assert_same(seen.heads, one_by_one(own, TEXTS[:2]))
    with pytest.raises(InputError, match="line 2: it is not JSON"):
        corpus_stats(own, read_corpus(path), run=CorpusRun(strict=True))


def test_cut_texts_and_unknown_tokens_are_counted_in_notes(own, tmp_path):
    texts = [TEXTS[0], "too long " * 600, "far too long " * 600, "A ☃ sat.", "Two ☃ and a ☃ slept there."]
    notes = corpus_stats(own, ListedTexts(texts), run=CorpusRun(truncate=True)).notes
    assert "2 texts were cut at the limit of tokens" in notes
    total = sum(len(own.prepare(text, limit=Limit(truncate=True)).tokens) for text in texts)
    assert f"3 of {total:,} tokens are unknown to the vocabulary: [UNK]" in notes
    notes = corpus_stats(load(t5(tmp_path)), ListedTexts(TEXTS[:3])).notes
    assert sum("the decoder gets the same text" in note for note in notes) == 1


@pytest.mark.parametrize("asked", [{"importance": True}, {"ablation": "zero"}])
def test_corpus_without_predictions_is_refused_for_loss(tmp_path, asked):
    both = load(t5(tmp_path), predicting=True)
    with pytest.raises(InputError, match=r"the list holds nothing that .* predicts: give longer texts, or"):
        corpus_stats(both, ListedTexts(TEXTS[:2]), **asked)


def test_text_limit_stops_the_corpus(own):
    seen = corpus_stats(own, ListedTexts(TEXTS), run=CorpusRun(limit=5))
    assert_same(seen.heads, one_by_one(own, TEXTS[:5]))


def test_corpus_without_readable_text_or_layer_is_refused(own):
    with pytest.raises(InputError, match="the list holds no text that own can read"):
        corpus_stats(own, ListedTexts([" ", ""]))
    with pytest.raises(SelectionError, match="no layer 9: this model has layers 0-3"):
        corpus_stats(own, ListedTexts(TEXTS), Selection(layers=(9,)))


def tampered(file, change, **how):
    """The same file with another state, under a checksum that fits."""
    content = json.loads(file.read_text())
    change(content["state"])
    write_checkpoint(file, content["of"], content["state"])
    return CorpusRun(checkpoint=file, **how)


def site(state):
    return state["sums"]["measured"]["sites"][0]


GONE = object()
LIES = {  # what each field must not be
    lambda state: state: {"sums": ([], [[[[[[[[]]]]]]]], GONE), "progress": (None,)},
    lambda state: state["sums"]["measured"]: {"measures": (["entropy"], ["__class__"])},
    site: {"site": ([],), "absent": (3, GONE)},
    lambda state: site(state)["site"]: {
        "layer": (10**400, 1 << 31, -1, "0", True, GONE),
        "call": (-1,),
        "kind": ("sideways",),
    },
    lambda state: site(state)["sums"]: {"numbers": ([[1.0]], 1.0, {}, {"shape": [10, 1]})},
    lambda state: site(state)["sums"]["numbers"]: {
        "shape": ([1], [1 << 40], [-1], "10", GONE),
        "addend": ([1.0], ["a"]),
        "7": ([10**400], [0.5]),
        "x": ([],),
        "9": ([],),
    },
    lambda state: state["progress"]: {
        "entries": (-1, 10**400, "1", 0.5),
        "other": (1,),
        "layout": (["a"], [1, 2]),
        "notes": ("abc",),
    },
}
CHANGES = [
    (part, name, lie) for part, fields in LIES.items() for name, lies in fields.items() for lie in lies
]


@pytest.mark.sweep(3)
@pytest.mark.parametrize(("part", "name", "lie"), CHANGES)
def test_tampered_checkpoint_with_valid_checksum_is_refused(own, sums, part, name, lie):
    def change(state):
        part(state)[name] = lie
        if lie is GONE:
            del part(state)[name]

    run, content = tampered(sums, change), sums.read_bytes()
    with pytest.raises(InputError, match="is no checkpoint of this run: delete it"):
        corpus_stats(own, FOUR, run=run)
    assert sums.read_bytes() == content


def test_memory_error_in_checkpoint_is_not_a_format_error(own, sums, monkeypatch):
    def exhausted(state):
        raise MemoryError

    monkeypatch.setattr(Measurement, "from_state", exhausted)
    with pytest.raises(MemoryError):
        corpus_stats(own, FOUR, run=CorpusRun(checkpoint=sums))


def test_hostile_checkpoint_text_and_counts_have_no_effect(own, kept, sums):
    def change(state):
        state["progress"].update(notes={HOSTILE: 1}, places=[[1, HOSTILE]], layout=[HOSTILE] * 2, skipped=1)
        state["progress"].update(batches=[10**9, -1])  # which no window has
        site(state)["site"].update(name=HOSTILE)
        site(state)["absent"]["entropy"] = HOSTILE

    stats = corpus_stats(own, FOUR, run=tampered(sums, change))
    said = [stats.title, *stats.notes, *(head.site.name for head in stats.heads)]
    said += [reason for head in stats.heads for reason in head.absent.values()]
    assert not any(map(steering, said))
    assert [head.scores for head in stats.heads] == [head.scores for head in kept[0].heads]


@pytest.mark.parametrize("name", ["bloom", "mpt", "bert", "llama", "gpt2", "t5", "own", "own-causal"])
@pytest.mark.slow
@pytest.mark.sweep(3)
def test_one_token_texts_have_all_heads(tmp_path, name):
    model = load(name if name.startswith("own") else family(tmp_path, name))

    def heads(*texts, **options):
        stats = corpus_stats(model, ListedTexts(texts), run=CorpusRun(**options))
        return [(scores.site.kind, scores.site.layer, scores.head) for scores in stats.heads]

    expected = heads(TEXTS[0])
    assert len(set(expected)) == len(expected)
    assert heads("T", TEXTS[0]) == heads(TEXTS[0], "T") == heads(TEXTS[0], max_tokens=1) == expected


def test_corpus_windows_are_limited_in_texts_and_characters(monkeypatch):
    entries = [CorpusText("", "x" * size, "", 0) for size in (1, 1, 1, 50, 1, 1)]
    monkeypatch.setattr("attnscope.questions.corpus.WINDOW_TEXTS", 3)
    monkeypatch.setattr("attnscope.questions.corpus.WINDOW_CHARACTERS", 40)
    assert [len(window) for window in windows(entries)] == [3, 1, 2]


def test_batches_hold_texts_of_equal_length_and_lose_none(monkeypatch, own):
    monkeypatch.setattr("attnscope.models.inputs.BATCH_TOKENS", 12)
    texts = ["a cat", "it", "the dog", "a long story of a cat", "on it", "so what", "no", "off"]
    made = batches(own.prepare_all([(text,) for text in texts]))
    for batch in made:
        assert batch.prepared.inputs["ids"].shape == (batch.texts, batch.tokens // batch.texts)
        assert batch.texts == 1 or batch.tokens <= 12
        queries, _ = batch.labels["encoder"]
        assert [[token.id for token in text] for text in queries] == batch.prepared.inputs["ids"].tolist()
    assert sum(batch.texts for batch in made) == len(texts)
    assert max(batch.texts for batch in made) > 1


def test_standard_input_is_measured_and_not_resumed(own, monkeypatch, tmp_path):
    def piped():
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO("\n".join(TEXTS).encode())))
        return read_corpus("-", None)

    assert corpus_stats(own, piped()).heads == corpus_stats(own, ListedTexts(TEXTS)).heads
    with pytest.raises(InputError, match="standard input cannot be resumed or shared: save it to a file"):
        corpus_stats(own, piped(), run=CorpusRun(checkpoint=tmp_path / "sums.json"))


def test_inputs_of_texts_and_free_memory_are_given_back_while_batches_run(own, monkeypatch):
    held, released = list[weakref.ref](), list[int]()

    def join(alike):
        held.extend(map(weakref.ref, alike))
        return join_texts(alike)

    monkeypatch.setattr("attnscope.models.inputs.join_texts", join)
    monkeypatch.setattr(corpus, "RELEASING_SECONDS", 0.0)
    monkeypatch.setattr(
        corpus, "release_memory", lambda: released.append(sum(each() is not None for each in held))
    )
    corpus_stats(own, ListedTexts(TEXTS))
    assert len(held) == len(TEXTS)
    assert len(released) > 1
    assert not any(released)
