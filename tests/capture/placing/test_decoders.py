"""A decoder is what also attends to another sequence: by what ran, whatever its modules are called."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import attnscope
from attnscope.capture import recording
from attnscope.errors import SelectionError

SEEN = ["latent", "proprio", *(f"patch{number}" for number in range(6))]


class Attend(nn.Module):
    """Attention of a module's own, over one sequence or two."""

    def __init__(self):
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(16, 16) for _ in range(3))

    def forward(self, x, other=None):
        states = self.query(x), *(each(x if other is None else other) for each in (self.key, self.value))
        split = (each.unflatten(-1, (4, 4)).transpose(1, 2) for each in states)
        return F.scaled_dot_product_attention(*split).transpose(1, 2).flatten(2)


class Torchs(nn.MultiheadAttention):
    """torch's own attention, called like the other."""

    def __init__(self):
        super().__init__(16, 4, batch_first=True)

    def forward(self, x, other=None):
        other = x if other is None else other
        return super().forward(x, other, other, need_weights=False)[0]


class Reads(nn.Module):
    """A layer over what is seen, given its positions, too."""

    def __init__(self, attend):
        super().__init__()
        self.attn = attend()

    def forward(self, x, positions):
        return x + self.attn(x + positions)


class Acts(nn.Module):
    """A layer of steps, which also look at what is seen; the list holds both, or attributes do."""

    def __init__(self, attend, first="self"):
        super().__init__()
        self.attn, self.look, self.first = attend(), attend(), first

    def forward(self, x, seen, positions):
        if self.first == "cross":
            x = x + self.look(x + positions, seen)
        x = x + self.attn(x + positions)
        return x if self.first == "cross" else x + self.look(x + positions, seen)


class Functional(nn.Module):
    """The same in one module, which computes both itself."""

    def __init__(self, *_):
        super().__init__()
        self.parts = nn.ModuleList(nn.Linear(16, 16) for _ in range(6))

    def forward(self, x, seen, positions):
        for number, other in ((0, x + positions), (3, seen)):
            query, key, value = self.parts[number : number + 3]
            states = query(x), key(other), value(other)
            split = (each.unflatten(-1, (4, 4)).transpose(1, 2) for each in states)
            x = x + F.scaled_dot_product_attention(*split).transpose(1, 2).flatten(2)
        return x


class Listed(nn.Module):
    """The same in a list."""

    def __init__(self, attend, first):
        super().__init__()
        self.parts = nn.ModuleList([attend(), attend()])

    def forward(self, x, seen, positions):
        x = x + self.parts[0](x + positions)
        return x + self.parts[1](x + positions, seen)


class Policy(nn.Module):
    """Observations become tokens, and steps look at them, as in ACT; no path says what is a decoder."""

    def __init__(self, attend=Torchs, steps=6, first="self", acts=Acts):
        super().__init__()
        torch.manual_seed(0)
        self.enc = nn.ModuleList(Reads(attend) for _ in range(3))
        self.dec = nn.ModuleList(acts(attend, first) for _ in range(2))
        self.into, self.seen = nn.Linear(5, 16), nn.Parameter(torch.randn(1, 8, 16))
        self.steps = nn.Parameter(torch.randn(1, steps, 16))

    def forward(self, observations):
        x = self.into(observations)
        for layer in self.enc:
            x = layer(x, self.seen)
        steps = torch.zeros_like(self.steps).expand(len(x), -1, -1)
        for layer in self.dec:
            steps = layer(steps, x, self.steps)
        return steps


def _look():
    return torch.randn(1, 8, 5, generator=torch.manual_seed(1))


@pytest.mark.parametrize(
    ("attend", "steps", "first"),
    [(Attend, 6, "self"), (Attend, 6, "cross"), (Attend, 8, "self")]
    + [(Torchs, steps, first) for steps in (6, 8) for first in ("self", "cross")],
)
def test_self_attention_beside_cross_attention_is_decoder_kind(attend, steps, first):
    model = Policy(attend, steps, first).eval()
    kinds = []
    for _ in range(2):  # the first pass knows as much as the next
        with torch.inference_mode(), recording(model) as record:
            model(_look())
        kinds.append([(call.site.name, call.site.kind, call.site.layer) for call in record.sites])
    decoder = [("attn", "decoder"), ("look", "cross")][:: 1 if first == "self" else -1]
    expected = [(f"enc.{number}.attn", "encoder", number) for number in range(3)]
    expected += [(f"dec.{n}.{part}", kind, n) for n in range(2) for part, kind in decoder]
    assert kinds == [expected, expected]


@pytest.mark.parametrize("acts", [Functional, Listed])
def test_one_module_or_list_may_hold_both_attention_kinds(acts):
    model = Policy(Attend, acts=acts).eval()
    with torch.inference_mode(), recording(model) as record:
        model(_look())
    kinds = [call.site.kind for call in record.sites]
    assert kinds == ["encoder"] * 3 + ["decoder", "cross"] * 2


def test_decoder_may_attend_across_in_every_second_layer():  # as a Q-Former does
    model = Policy(Attend).eval()
    model.dec.extend([Acts(Attend), Acts(Attend)])
    for layer in (model.dec[1], model.dec[3]):
        layer.look = None
        layer.forward = lambda x, seen, positions, attn=layer.attn: x + attn(x + positions)
    with torch.inference_mode(), recording(model) as record:
        model(_look())
    assert [call.site.kind for call in record.sites][3:] == ["decoder", "cross", "decoder"] * 2
    layers = [call.site.layer for call in record.sites if call.site.kind == "decoder"]
    assert layers == [0, 1, 2, 3]


def _recorded(model, steps=6):
    labels = {"encoder": SEEN, "decoder": [f"step{number}" for number in range(steps)]}
    with torch.inference_mode(), attnscope.record(model, labels) as run:
        model(_look())
    return run


@pytest.mark.parametrize("steps", [6, 8])
def test_flow_covers_encoder_and_decoder_of_a_policy(steps):
    model = Policy(steps=steps).eval()
    run = _recorded(model, steps)
    maps = {(each["kind"], each["layer"]): each for each in run.flow().numbers["layers"]}

    def mean(kind, layer):
        heads = [run.head(f"{kind} L{layer}H{head}").weights for head in range(4)]
        return np.mean(heads, 0, dtype=np.float64)

    seen = np.eye(8)
    for layer in range(3):
        seen = 0.5 * (np.eye(8) + mean("encoder", layer)) @ seen
        np.testing.assert_allclose(maps["encoder", layer]["weights"], seen, atol=1e-6)
    own, across = np.eye(steps), np.zeros((steps, 8))
    for layer in range(2):
        mixed = 0.5 * (np.eye(steps) + mean("decoder", layer))
        own, across = mixed @ own, mixed @ across
        own, across = 0.5 * own, 0.5 * across + 0.5 * mean("cross", layer) @ seen
        np.testing.assert_allclose(maps["cross", layer]["weights"], across, atol=1e-6)
        np.testing.assert_allclose(maps["decoder", layer]["weights"], own, atol=1e-6)
    assert list(maps["cross", 1]["keys"]) == SEEN


def test_flow_of_a_token_selects_its_own_kind():
    run = _recorded(Policy().eval())
    named = run.flow(token="proprio", kind="encoder", layer=1)
    assert "proprio (token 1) draws on" in repr(named)
    assert "layers 0-1" in repr(named)
    assert "encoder attention" in repr(run.flow(token="proprio"))
    assert "decoder attention" in repr(run.flow(token="step3"))
    assert "cross-attention" in repr(run.flow(kind="cross"))
    with pytest.raises(SelectionError, match="no layer 9"):
        run.flow(kind="encoder", layer=9)


class Pools(nn.Module):
    """Three layers, of which the last one has half of the tokens."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(Torchs() for _ in range(3))

    def forward(self, x):
        for number, layer in enumerate(self.layers):
            x = layer(x if number < 2 else x[:, ::2])
        return x


def test_flow_up_to_a_layer_ignores_later_token_changes():
    model = Pools().eval()
    with torch.inference_mode(), attnscope.record(model, SEEN) as run:
        model(torch.randn(1, 8, 16))
    with pytest.raises(attnscope.AttnscopeError, match=r"change on the way .*4 × 4, 8 × 8"):
        run.flow()
    drawn = run.flow(layer=1, token="proprio")
    assert "layers 0-1" in repr(drawn)
    assert any("layers from 2 on are left out" in note for note in drawn.notes)


class Causal(nn.Module):
    """Causal attention in which rows of padding see nothing and are not seen."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.query, self.key = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, x, real):
        allowed = torch.ones(x.shape[1], x.shape[1]).tril().bool() & real[:, None] & real[:, :, None]
        return F.scaled_dot_product_attention(self.query(x), self.key(x), x, allowed)


@pytest.mark.parametrize("side", ["left", "right", "both"])
def test_padding_side_does_not_change_the_kind(side):
    real = torch.ones(1, 9, dtype=torch.bool)
    real[:, :3] = side == "right"
    real[:, 6:] = side == "left"
    model = Causal().eval()
    with torch.inference_mode(), recording(model) as record:
        model(torch.randn(1, 9, 16), real)
    assert [call.site.kind for call in record.sites] == ["decoder"]


@pytest.mark.parametrize("causal", [True, False])
def test_recorded_cross_attention_says_which_row_writes(causal):
    layer = nn.TransformerDecoderLayer(16, 4, 32, batch_first=True)
    model = nn.TransformerDecoder(layer, 2).eval()
    mask = nn.Transformer.generate_square_subsequent_mask(5) if causal else None
    with torch.inference_mode(), attnscope.record(model, seal=False) as run:
        model(torch.randn(1, 5, 16), torch.randn(1, 7, 16), tgt_mask=mask, tgt_is_causal=causal)
    assert any("predicts the next" in note for note in run.notes) == causal
