"""The fused pass in real models: the same outputs, scores and maps as with the kernel."""

import pytest
import torch
import transformers as hf

from attnscope.attention import Attention, Token
from attnscope.capture import FUSED, recording
from attnscope.capture.observers import SharedRows
from attnscope.fused.fused_pass import FusedPass
from attnscope.fused.request import Request
from attnscope.measures import DEFAULT, Measurement, fused_request
from attnscope.questions.selection import Selection
from tests.capture.tiny import FAMILIES
from tests.measures.rounding import near

LENGTH, WHOLE = 70, Selection()
IDS = torch.randint(0, 50, (1, LENGTH), generator=torch.Generator().manual_seed(0))
TEXT = tuple(Token(f"w{id_}", id_) for id_ in IDS[0].tolist())


def build(name):
    """A random model of a family, of its encoder alone where it has two stacks; eager with caps or sinks."""
    if name == "t5":
        return hf.T5EncoderModel(FAMILIES[name].config()).eval()
    return FAMILIES[name].build("eager" if name in ("gemma2", "gpt-oss") else None)


def watch(model, observers, fused=None):
    """The output of a pass and its record."""
    axes = dict.fromkeys(("encoder", "decoder"), (TEXT, TEXT))
    with torch.inference_mode(), recording(model, observers, axes, fused) as record:
        return model(input_ids=IDS).last_hidden_state, record


def fused_for_cells(cells):
    return FusedPass(fused_request(DEFAULT, [TEXT], cells=cells), shortest=1)


@pytest.mark.parametrize("name", ["gpt2", "llama", "mistral", "bert", "t5", "gemma2", "gpt-oss"])
def test_fused_models_have_equal_outputs_scores_and_maps(name):
    model = build(name)
    beside, pool = Measurement(), WHOLE.coarsen(12, even=True)
    streamed, maps = Measurement(), WHOLE.coarsen(12, even=True)
    expected, _ = watch(model, [beside, pool])
    output, record = watch(model, [streamed, maps], fused_for_cells(12))
    assert [site.kernel for site in record.sites] == [FUSED] * len(record.sites) != []
    assert torch.allclose(output, expected, atol=1e-4)
    with torch.inference_mode():  # nothing stays behind
        assert torch.equal(model(input_ids=IDS).last_hidden_state, expected)
    for one, other in zip(beside.scores(), streamed.scores(), strict=True):
        assert one.site == other.site
        assert list(one.scores) == list(other.scores)
        for name, score in one.scores.items():
            assert score.rows == other.scores[name].rows
            assert score.value == near(other.scores[name].value, name, LENGTH), name
            assert score.baseline == near(other.scores[name].baseline, name, LENGTH, 1e-8), name
    for left, right in zip(pool.maps, maps.maps, strict=True):
        assert left.site == right.site
        assert (left.queries.places, left.keys.places) == (right.queries.places, right.keys.places)
        assert torch.equal(left.open.expand_as(left.values), right.open.expand_as(right.values))
        assert torch.allclose(left.values, right.values, atol=1e-5)


@pytest.mark.parametrize("name", ["gpt2", "gemma2"])
def test_short_texts_use_the_kernel_bit_for_bit(name):
    model = build(name)
    with torch.inference_mode():
        expected = model(input_ids=IDS).last_hidden_state
    output, record = watch(model, [Measurement()], FusedPass())
    assert {site.refusal for site in record.sites} == {"it has fewer than 512 keys"}
    assert torch.equal(output, expected)


def test_map_with_other_cells_is_pooled_from_rows():
    model = build("gpt2")
    maps, plain = WHOLE.coarsen(9, even=True), WHOLE.coarsen(9, even=True)
    highest = WHOLE.coarsen(12, even=True, how="max")
    watch(model, [maps, highest], FusedPass(Request(cells=12), shortest=1))
    watch(model, [plain])
    assert torch.equal(maps.maps[0].values, plain.maps[0].values)
    assert bool((highest.maps[0].values >= 0).all())
    assert highest.maps[0].values.shape[-1] == 12


def test_selected_heads_of_a_fused_pass_need_no_rows(monkeypatch):
    model = build("llama")
    every, every_map = Measurement(), WHOLE.coarsen(12, even=True)
    some, some_maps = Measurement(), WHOLE.coarsen(12, even=True)
    watch(model, [every, every_map])
    monkeypatch.setattr(Attention, "rows", lambda *_: pytest.fail("a row was computed"))
    chosen = SharedRows([some, some_maps], lambda site, count: [3, 1] if site.layer == 1 else None)
    watch(model, [chosen], fused_for_cells(12))
    beside = {scores.head: scores for scores in every.scores() if scores.site.layer == 1}
    for scores, head in zip(some.scores(), (3, 1), strict=True):
        for name, score in scores.scores.items():
            assert score.value == near(beside[head].scores[name].value, name, LENGTH), name
    assert torch.allclose(some_maps.maps[0].values, every_map.maps[1].values[:, [3, 1]], atol=1e-5)
