"""``flex_attention`` that a module calls itself, against a plain softmax over scores written out by hand."""

import subprocess
import sys

import pytest
import torch
from torch import nn
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from attnscope.capture import Keep, recording
from attnscope.capture.hooks.functions import COMPILED
from tests.capture.tiny import FAMILIES, inputs

SIZE, HEADS, COUNT = 16, 4, 7
SLOPES = torch.tensor([0.5, 0.25, 0.125, 0.0625])
TABLE = torch.linspace(-1, 1, HEADS * COUNT * COUNT).view(HEADS, COUNT, COUNT)
TEXTS = torch.tensor([0, 0, 0, 1, 1, 1, 1])


def alibi(score, text, head, query, key):
    return score + SLOPES[head] * (key - query)


def capped(score, text, head, query, key):
    return 3 * torch.tanh(score / 3)


def biased(score, text, head, query, key):
    return score + TABLE[head, query, key]


def causal(score, text, head, query, key):
    return torch.where(query >= key, score, -torch.inf)


def is_past(text, head, query, key):
    return query >= key


def is_of_one_text(text, head, query, key):
    return (TEXTS[query] == TEXTS[key]) & (query >= key)


def is_open_to_no_first_row(text, head, query, key):
    return (query > 0) & ((query - key).abs() < 3)


PLACE = torch.arange(COUNT)
CHANGES = {
    None: lambda scores: scores,
    alibi: lambda scores: scores + SLOPES[:, None, None] * (PLACE - PLACE[:, None]),
    capped: lambda scores: 3 * torch.tanh(scores / 3),
    biased: lambda scores: scores + TABLE,
    causal: lambda scores: scores.masked_fill(torch.ones(COUNT, COUNT).triu(1).bool(), -torch.inf),
}
OPEN = {
    None: torch.ones(COUNT, COUNT, dtype=torch.bool),
    is_past: torch.ones(COUNT, COUNT).tril().bool(),
    is_of_one_text: torch.block_diag(torch.ones(3, 3), torch.ones(4, 4)).tril().bool(),
    is_open_to_no_first_row: ((PLACE - PLACE[:, None]).abs() < 3) & (PLACE > 0)[:, None],
}


class Flexible(nn.Module):
    def __init__(self, change=None, is_open=None, key_heads=HEADS, attend=flex_attention):
        super().__init__()
        size = SIZE // HEADS * key_heads
        self.q, self.k, self.v = nn.Linear(SIZE, SIZE), nn.Linear(SIZE, size), nn.Linear(SIZE, size)
        self.change, self.is_open, self.attend = change, is_open, attend

    def project(self, x):
        return [
            part(x).unflatten(-1, (-1, SIZE // HEADS)).transpose(1, 2) for part in (self.q, self.k, self.v)
        ]

    def forward(self, x):
        mask = None
        if self.is_open is not None:
            mask = create_block_mask(self.is_open, None, None, x.shape[1], x.shape[1], device="cpu")
        q, k, v = self.project(x)
        grouped = k.shape[1] < HEADS
        mixed = self.attend(q, k, v, score_mod=self.change, block_mask=mask, enable_gqa=grouped)
        return mixed.transpose(1, 2).flatten(2)


def weights(module, x):
    """The weights by hand."""
    q, k, _ = module.project(x)
    scores = CHANGES[module.change](q @ k.repeat_interleave(HEADS // k.shape[1], 1).mT / 2)
    rows = scores.masked_fill(~OPEN[module.is_open], -torch.inf).softmax(-1)
    return rows.nan_to_num()


def mixed(module, x):
    """What the module returns, by hand."""
    values = module.project(x)[2]
    groups = HEADS // values.shape[1]
    return (weights(module, x) @ values.repeat_interleave(groups, 1)).transpose(1, 2).flatten(2)


CASES = [
    *((change, None, HEADS) for change in CHANGES),
    *((None, is_open, HEADS) for is_open in OPEN if is_open is not None),
    (alibi, is_past, 2),
    (biased, is_open_to_no_first_row, 2),
]


@pytest.mark.parametrize(("change", "is_open", "key_heads"), CASES)
def test_rows_are_those_of_changed_scores_under_the_mask(change, is_open, key_heads):
    torch.manual_seed(0)
    model = nn.ModuleDict(
        {"layers": nn.ModuleList(Flexible(change, is_open, key_heads) for _ in range(2))}
    ).eval()
    model.forward = lambda x: model["layers"][1](model["layers"][0](x))
    keep, x = Keep(lambda site: range(HEADS)), torch.randn(2, COUNT, SIZE)
    with torch.inference_mode():
        with recording(model, [keep]) as record:
            model(x)
        first, second = model["layers"]
        expected = [weights(first, x), weights(second, mixed(first, x))]
    assert not record.notes
    assert not record.without_attention
    kind = "encoder" if change is not causal and is_open in (None, is_open_to_no_first_row) else "decoder"
    for layer, (site, kept) in enumerate(zip(record.sites, keep.maps, strict=True)):
        assert (site.site.layer, site.site.kind, site.kernel) == (layer, kind, "flex_attention")
        assert site.key_heads == key_heads
        assert site.difference < 1e-6
        torch.testing.assert_close(kept.weights, expected[layer])
        if change is not causal:
            assert torch.equal(kept.allowed.expand(2, HEADS, -1, -1), OPEN[is_open].expand(2, HEADS, -1, -1))


def test_a_compiled_flex_attention_is_watched_as_it_was_written():
    torch.manual_seed(0)
    attend = torch.compile(flex_attention, backend="eager")
    model, x, keep = (
        Flexible(alibi, is_past, attend=attend).eval(),
        torch.randn(2, COUNT, SIZE),
        Keep(lambda site: range(HEADS)),
    )
    with torch.inference_mode():
        plain = model(x)
        with recording(model, [keep]) as record:
            torch.testing.assert_close(model(x), plain)
        torch.testing.assert_close(keep.maps[0].weights, weights(model, x))
    assert record.notes == [COMPILED]


def test_transformers_compiles_flex_attention_itself_so_its_models_say_the_same():
    model = FAMILIES["llama"].build("flex_attention")
    with torch.inference_mode(), recording(model) as record:
        model(**inputs("text"))
    assert {site.kernel for site in record.sites} == {"flex_attention"}
    assert record.notes == [COMPILED]


LATE = """
import torch
from torch import nn
from attnscope.capture import recording

class Late(nn.Module):
    def forward(self, x):
        from torch.nn.attention.flex_attention import flex_attention
        return flex_attention(x, x, x)

model, x = Late().eval(), torch.randn(1, 2, 5, 8)
with torch.inference_mode(), recording(model) as record:
    watched = model(x)
with torch.inference_mode():
    assert torch.equal(watched, model(x))
assert [site.kernel for site in record.sites] == ["flex_attention"] and not record.failures
"""


@pytest.mark.slow
def test_a_model_that_first_loads_torchs_compiler_while_it_is_watched_works():
    ran = subprocess.run([sys.executable, "-W", "ignore", "-c", LATE], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
