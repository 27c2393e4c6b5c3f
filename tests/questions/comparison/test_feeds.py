"""Which head feeds which: the induction pair of the bundled causal encoder, and what is refused."""

from pathlib import Path

import pytest
import transformers

from attnscope.attention import Head
from attnscope.errors import ModelError, SelectionError
from attnscope.models import load
from attnscope.models.inputs import Limit
from attnscope.questions.composition import find_feeds
from attnscope.questions.selection import Selection
from attnscope.questions.stats import measure_heads
from tests.models.folders import gpt2, minilm, t5
from tests.questions.intervention.shapes import saved

SAMPLES = Path(__file__).parents[3] / "sample_inputs"
TEXT = "The cat sat on the mat. " * 12


@pytest.fixture(scope="module")
def causal():
    return load("own-causal")


def test_the_head_with_most_induction_is_fed_its_keys_by_the_one_that_looks_back_most(causal):
    """Olsson et al. 2022: an induction head finds its key by what a previous-token head wrote there."""
    seen = {}
    for name, text in {"induction": "repeated.txt", "previous": "article.txt"}.items():
        prepared = causal.prepare((SAMPLES / text).read_text("utf-8"), limit=Limit(truncate=True))
        heads = measure_heads(causal, prepared, Selection()).heads
        seen[name] = {head.address: head.figures[name].value for head in heads}
    induction = max(seen["induction"], key=seen["induction"].__getitem__)
    before = [head for head in seen["previous"] if head.layer < induction.layer]
    fed = find_feeds(causal, causal.prepare("A cat."), induction).feeds
    assert fed[0].way == "K"
    assert fed[0].head == max(before, key=seen["previous"].__getitem__)
    assert fed[0].lift > 0.02


def test_the_text_plays_no_part(causal):
    one, other = (find_feeds(causal, causal.prepare(text), Head("L1H0")) for text in ("A cat.", TEXT))
    assert one.feeds == other.feeds


def test_all_pairs_are_those_of_each_head(causal):
    prepared = causal.prepare("A cat.")
    every = find_feeds(causal, prepared).feeds
    assert len(every) == 3 * (4 * 4 + 4 * 8)
    named = find_feeds(causal, prepared, Head("L2H3"))
    assert named.fed == Head("decoder L2H3")
    assert set(named.feeds) == {each for each in every if each.fed == named.fed}
    assert {layer: len(heads) for layer, heads in named.by("Q").items()} == {0: 4, 1: 4}


def test_both_sides_of_an_encoder_decoder_are_composed_and_cross_attention_is_left_out(tmp_path):
    model = load(t5(tmp_path))
    feeds = find_feeds(model, model.prepare("A cat.", "A dog.")).feeds
    assert {each.head.kind for each in feeds} == {"encoder", "decoder"}
    assert all(each.head.kind == each.fed.kind for each in feeds)


def test_heads_that_are_not_there_or_have_none_before_them_are_refused(causal):
    prepared = causal.prepare("A cat.")
    with pytest.raises(SelectionError, match="layers 0-2 have heads 0-3"):
        find_feeds(causal, prepared, Head("L2H9"))
    with pytest.raises(SelectionError, match="no head comes before L0H1"):
        find_feeds(causal, prepared, Head("L0H1"))


def test_a_trained_model_of_another_kind_composes():
    model = load(minilm())
    seen = find_feeds(model, model.prepare("A cat."))
    assert len(seen.feeds) == 3 * 12 * 12 * 15
    assert seen.feeds[0].lift > 0.05


def test_a_file_holds_no_weights_of_a_model(causal):
    from attnscope.models.keeping import keep_trace
    from attnscope.models.kept import TracedModel

    traced = TracedModel(keep_trace(causal, causal.prepare("A cat.")))
    with pytest.raises(ModelError, match="holds no weights of a model"):
        find_feeds(traced, traced.prepared)


def test_turned_positions_and_shared_keys_are_said(tmp_path):
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = transformers.LlamaConfig(**sizes, num_key_value_heads=2, vocab_size=8192)
    model = load(saved(tmp_path / "llama", transformers.LlamaForCausalLM(config)))
    notes = find_feeds(model, model.prepare("A cat sat.")).notes
    assert any(note.startswith("layers 0, 1: positions turn queries and keys") for note in notes)
    assert any(note.startswith("2 heads share each key and value") for note in notes)
    model = load(gpt2(tmp_path / "gpt2"))
    notes = find_feeds(model, model.prepare("A cat sat.")).notes
    assert not any("positions turn" in note or "share" in note for note in notes)
