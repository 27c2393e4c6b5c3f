"""A checkpoint is written by time, goes on in the middle of a window, and is believed in nothing."""

import json

import pytest

from attnscope.errors import InputError
from attnscope.models import load
from attnscope.questions.corpus import CorpusRun
from attnscope.questions.corpus_stats import corpus_stats
from attnscope.storage import checkpoint as checkpoints
from attnscope.storage.corpus import ListedTexts
from tests.questions.corpus.test_corpus_stats import TEXTS, stopped_after
from tests.test_text import HOSTILE, steering

UNREADABLE = "too long " * 600


@pytest.fixture(scope="module")
def model():
    return load("own")


@pytest.fixture(scope="module")
def kept(model, tmp_path_factory):
    """What a run over four texts leaves: its figures, and the bytes of its checkpoint."""
    file = tmp_path_factory.mktemp("kept") / "sums.json"
    return corpus_stats(model, ListedTexts(TEXTS[:4]), run=CorpusRun(checkpoint=file)), file.read_bytes()


@pytest.fixture
def sums(kept, tmp_path):
    """The checkpoint of that run, which a test may change."""
    file = tmp_path / "sums.json"
    file.write_bytes(kept[1])
    return file


@pytest.fixture(scope="module")
def whole(model):
    """All texts as one run of small batches."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("attnscope.questions.corpus.BATCH_TOKENS", 20)
        return corpus_stats(model, ListedTexts([*TEXTS, UNREADABLE]))


@pytest.fixture
def small_batches(monkeypatch):
    monkeypatch.setattr("attnscope.questions.corpus.BATCH_TOKENS", 20)


def state_of(file):
    return json.loads(file.read_text())["state"]


@pytest.mark.parametrize("texts", [2, 7, 11])
@pytest.mark.slow
def test_a_run_that_was_kept_by_time_goes_on_inside_of_its_window(
    model, small_batches, whole, tmp_path, monkeypatch, texts
):
    """All texts are one window: only the clock keeps anything before its end."""
    monkeypatch.setattr("attnscope.questions.corpus.EVERY", 0.0)
    file, corpus = tmp_path / "sums.json", ListedTexts([*TEXTS, UNREADABLE])
    stopped_after(model, corpus, file, texts)
    kept = state_of(file)["progress"]
    assert 0 < kept["texts"] < len(TEXTS)
    assert kept["batches"] > 0
    assert (kept["entries"], kept["skipped"]) == (0, 0)  # counted again with the window
    counted = []
    seen = corpus_stats(
        model, corpus, run=CorpusRun(checkpoint=file, watch=lambda now: counted.append(now.texts))
    )
    assert min(counted) > kept["texts"]
    assert seen.heads == whole.heads
    assert (seen.title, seen.ran, seen.notes) == (whole.title, whole.ran, whole.notes)
    assert state_of(file)["progress"]["batches"] == 0


def test_without_time_gone_by_only_a_window_is_kept(model, small_batches, tmp_path):
    file = tmp_path / "sums.json"
    stopped_after(model, ListedTexts(TEXTS), file, 10)
    assert not file.exists()


def tampered(file, change):
    """The same file with another state, under a checksum that fits."""
    content = json.loads(file.read_text())
    change(content["state"])
    checkpoints.write_checkpoint(file, content["of"], content["state"])


def site(state):
    return state["sums"]["measured"]["sites"][0]


LIES = {
    "no sums": lambda state: state.pop("sums"),
    "sums that are a list": lambda state: state.update(sums=[]),
    "sums that are nested deeply": lambda state: state.update(sums=[[[[[[[[]]]]]]]]),
    "other measures": lambda state: state["sums"]["measured"].update(measures=["entropy"]),
    "measures that do not exist": lambda state: state["sums"]["measured"].update(measures=["__class__"]),
    "a site without a layer": lambda state: site(state)["site"].pop("layer"),
    "a layer of 400 digits": lambda state: site(state)["site"].update(layer=10**400),
    "a layer that is a text": lambda state: site(state)["site"].update(layer="0"),
    "a layer that is true": lambda state: site(state)["site"].update(layer=True),
    "a kind of its own": lambda state: site(state)["site"].update(kind="sideways"),
    "a site that is a list": lambda state: site(state).update(site=[]),
    "no absent measures": lambda state: site(state).pop("absent"),
    "absent measures that are a number": lambda state: site(state).update(absent=3),
    "rows of another shape": lambda state: site(state)["sums"].update(rows=[[1.0]]),
    "rows that are a number": lambda state: site(state)["sums"].update(rows=1.0),
    "ragged rows": lambda state: site(state)["sums"].update(rows=[[1.0], [1.0, 2.0]]),
    "rows of texts": lambda state: site(state)["sums"].update(rows=[["a"]]),
    "rows of 400 digits": lambda state: site(state)["sums"].update(rows=[[10**400]]),
    "no progress": lambda state: state.update(progress=None),
    "a negative number of entries": lambda state: state["progress"].update(entries=-1),
    "entries of 400 digits": lambda state: state["progress"].update(entries=10**400),
    "entries that are a text": lambda state: state["progress"].update(entries="1"),
    "half an entry": lambda state: state["progress"].update(entries=0.5),
    "a field that does not exist": lambda state: state["progress"].update(other=1),
    "a layout of one part": lambda state: state["progress"].update(layout=["a"]),
    "a layout of numbers": lambda state: state["progress"].update(layout=[1, 2]),
    "notes that are a text": lambda state: state["progress"].update(notes="abc"),
}


@pytest.mark.parametrize("lie", LIES, ids=str)
def test_a_checkpoint_that_was_tampered_with_is_refused_though_its_checksum_fits(model, sums, lie):
    tampered(sums, LIES[lie])
    content = sums.read_bytes()
    with pytest.raises(InputError, match="holds sums that this command never wrote: delete it"):
        corpus_stats(model, ListedTexts(TEXTS[:4]), run=CorpusRun(checkpoint=sums))
    assert sums.read_bytes() == content


def test_a_number_of_batches_that_a_window_never_had_counts_nothing_twice(model, kept, sums):
    tampered(sums, lambda state: state["progress"].update(batches=10**9))
    assert corpus_stats(model, ListedTexts(TEXTS[:4]), run=CorpusRun(checkpoint=sums)).heads == kept[0].heads


def test_hostile_text_in_a_checkpoint_steers_nothing(model, sums):
    def change(state):
        state["progress"].update(notes=[HOSTILE], places=[HOSTILE], layout=[HOSTILE] * 2, skipped=1)
        site(state)["site"].update(name=HOSTILE)
        site(state)["absent"]["entropy"] = HOSTILE

    tampered(sums, change)
    stats = corpus_stats(model, ListedTexts(TEXTS[:4]), run=CorpusRun(checkpoint=sums))
    said = [stats.title, *stats.notes, *(head.site.name for head in stats.heads)]
    said += [reason for head in stats.heads for reason in head.absent.values()]
    assert not any(map(steering, said))
