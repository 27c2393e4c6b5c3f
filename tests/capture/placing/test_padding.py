"""Padded rows, against NumPy on the eager attention of the real rows."""

import numpy as np
import pytest
import torch
import transformers as hf
from torch import nn

import attnscope
from attnscope.capture import recording
from attnscope.measures.measurement import Measurement
from tests.capture.observing import MapObserver

SIZES = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48,
    "vocab_size": 50,
}  # fmt: skip
IDS = torch.randint(50, (3, 7), generator=torch.Generator().manual_seed(0))
REAL = {
    "left": torch.arange(7) >= torch.tensor([[3], [0], [1]]),
    "right": torch.arange(7) < torch.tensor([[4], [7], [6]]),
    "one text": torch.arange(7)[None] < 4,
}


def bert(kind):
    return hf.BertModel(hf.BertConfig(**SIZES, attn_implementation=kind))


def llama(kind):
    return hf.LlamaModel(hf.LlamaConfig(**SIZES, attn_implementation=kind))


class ByHand(nn.Module):
    """Causal attention by hand, whose mask adds a number; ``kept`` are its weights."""

    def __init__(self, closed):
        super().__init__()
        self.closed, self.embed, self.qkv = closed, nn.Embedding(50, 32), nn.Linear(32, 96)

    def forward(self, input_ids, attention_mask):
        q, k, v = (
            part.unflatten(-1, (4, 8)).transpose(1, 2)
            for part in self.qkv(self.embed(input_ids)).chunk(3, -1)
        )
        later = torch.ones(7, 7).triu(1).bool()
        masked = torch.zeros(7, 7).masked_fill(later, self.closed)
        masked = masked + torch.zeros(7).where(attention_mask[:, None, None] > 0, self.closed)
        self.kept = (q @ k.mT / 3 + masked).softmax(-1)
        return self.kept @ v


MODELS = {
    **{f"{make.__name__} {kind}": (make, kind) for make in (bert, llama) for kind in ("eager", "sdpa")},
    **{f"by hand {closed}": (ByHand, closed) for closed in (-1e4, -1e9, -torch.inf)},
}


def passed(model, real):
    """A pass of the batch, or the first text; the weights of its first layer.  [text, head, row, key]"""
    given = {"input_ids": IDS[: len(real)], "attention_mask": real.long()}
    with torch.no_grad():
        if isinstance(model, ByHand):
            model(**given)
            return given, model.kept.double().numpy()
        eager = type(model)(type(model.config)(**SIZES, attn_implementation="eager")).eval()
        eager.load_state_dict(model.state_dict())
        return given, eager(**given, output_attentions=True).attentions[0].double().numpy()


OFFSETS = {"previous": -1, "next": 1, "first": 0, "entropy": None}


def expected(weights, real, causal):
    """Each score by head, and its baseline, over the real rows of all texts that have a choice."""
    sums = {name: ([], []) for name in OFFSETS}
    for text, alive in enumerate(real.numpy()):
        there = np.flatnonzero(alive)
        for row in there:
            keys = [key for key in there if key <= row or not causal]
            if len(keys) < 2:
                continue
            mine = weights[text][:, row, keys]  # [head, key]
            sums["entropy"][0].append(-(mine * np.log(mine)).sum(-1))
            sums["entropy"][1].append(np.log(len(keys)))
            for name, key in {"previous": row - 1, "next": row + 1, "first": there[0]}.items():
                if key in there and (name != "first" or row > key):
                    at = [place for place, each in enumerate(keys) if each == key]
                    sums[name][0].append(mine[:, at].sum(-1))
                    sums[name][1].append(len(at) / len(keys))
    return {name: [np.mean(each, 0) for each in both] for name, both in sums.items()}


@pytest.mark.parametrize("side", REAL)
@pytest.mark.parametrize("name", MODELS)
def test_padding_is_excluded_from_scores_baselines_and_maps(name, side):
    torch.manual_seed(0)
    (make, how), real = MODELS[name], REAL[side]
    model = make(how).eval()
    given, weights = passed(model, real)
    measured, keep = Measurement(tuple(OFFSETS)), MapObserver()
    with torch.no_grad(), recording(model, [measured, keep]) as record:
        model(**given)
    closed = ~real
    kind = "encoder" if make is bert else "decoder"
    sentence = f"{int(closed.sum())} of {real.numel()} rows of {kind} attention are padding and are left out"
    nan = "the model's own output contains NaN"  # in rows of padding, where all keys are -inf
    assert [note for note in record.notes if note != nan] == [sentence]
    assert {*record.warnings} <= {nan}
    opened = real[:, None, None] & real[:, None, :, None]
    opened = opened if make is bert else opened & torch.ones(7, 7).tril().bool()
    assert torch.equal(keep.maps[0].allowed, opened)
    by_hand = expected(weights, real, make is not bert)
    for head, found in enumerate(measured.scores()[:4]):
        for name, (values, baseline) in by_hand.items():
            assert found.scores[name].value == pytest.approx(values[head], abs=1e-5)
            assert found.scores[name].baseline == pytest.approx(baseline, abs=1e-6)


@pytest.mark.parametrize("side", ["left", "right"])
def test_batch_mean_excludes_padded_rows(side):
    torch.manual_seed(0)
    model, real = bert("sdpa").eval(), REAL[side]
    given, weights = passed(model, real)
    with torch.no_grad(), attnscope.record(model) as run:
        model(**given)
    alive = real.numpy()
    mean = (weights[:, 1] * alive[..., None]).sum(0) / alive.sum(0)[:, None]
    shown = run.head("L0H1")
    assert np.abs(shown.weights - mean).max() < 1e-6
    assert np.abs(np.array(shown.numbers["weights"], float) - mean).max() < 1e-6
    heads = run.find("0 -> 4").numbers["questions"][0]["heads"]
    (found,) = (each for each in heads if (each["layer"], each["head"]) == (0, 1))
    assert found["weight"] == pytest.approx(mean[0, 4], abs=1e-6)


class Strict(nn.Module):
    """Tokens see what comes before them, and not themselves; blocks see themselves alone."""

    def __init__(self, opened):
        super().__init__()
        self.opened, self.embed = opened, nn.Embedding(50, 32)

    def forward(self, ids):
        x = self.embed(ids)[:, None]
        return (x @ x.mT / 3).masked_fill(~self.opened, -1e9).softmax(-1) @ x


@pytest.mark.parametrize(
    "opened", [torch.ones(7, 7).tril(-1).bool(), torch.block_diag(torch.ones(3, 3), torch.ones(4, 4)).bool()]
)
def test_token_masked_for_others_is_not_padding(opened):
    model = Strict(opened)
    with torch.no_grad(), recording(model) as record:
        model(IDS)
    assert record.notes == []
