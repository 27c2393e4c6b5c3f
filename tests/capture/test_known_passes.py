"""A pass of a known trace is not followed, and shows what it would have shown; any other is followed."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from attnscope.capture import KnownPasses, recording
from attnscope.capture.lineage.follow import Lineage
from attnscope.models import load
from tests.capture.observing import Keep
from tests.capture.tiny import FAMILIES

SIZE, HEADS = 16, 2


class Attend(nn.Module):
    """Attention by torch's kernel over what ``turn`` makes of the states."""

    def __init__(self, turn):
        super().__init__()
        self.embed, self.qkv, self.turn = nn.Embedding(50, SIZE), nn.Linear(SIZE, 3 * SIZE), turn

    def forward(self, ids):
        x = self.turn(self.embed(ids))
        q, k, v = (part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)


def handwritten(module, ids):
    x = module.turn(module.embed(ids))
    q, k, v = (part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in module.qkv(x).chunk(3, -1))
    return (q @ k.mT / (SIZE // HEADS) ** 0.5).softmax(-1) @ v


class SomeAsk(Attend):
    """Only the third and fourth position ask."""

    def forward(self, ids):
        q, k, v = (
            part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in self.qkv(self.embed(ids)).chunk(3, -1)
        )
        return F.scaled_dot_product_attention(q[:, :, 2:4], k, v)


class Runs:
    """Passes of one model under one memory of known ones, and how many functions were followed in each."""

    def __init__(self, model, monkeypatch):
        self.model, self.known, self.followed = model, KnownPasses(), 0
        see = Lineage.see

        def count(lineage, seen):
            self.followed += 1
            return see(lineage, seen)

        monkeypatch.setattr(Lineage, "see", count)

    def __call__(self, *shape):
        """Whether a pass of that shape was followed; it shows what a followed one does."""
        ids = torch.randint(4, 49, shape)

        def work():
            keep = Keep()
            with torch.inference_mode(), recording(self.model, [keep], warn=False) as record:
                self.model(ids)
            return keep, record

        self.followed = 0
        mine, record = self.known.run(work)
        followed = self.followed > 0
        theirs, expected = work()
        assert [site.site for site in record.sites] == [site.site for site in expected.sites]
        assert record.without_attention == expected.without_attention
        assert record.notes == expected.notes
        for one, other in zip(mine.maps, theirs.maps, strict=True):
            np.testing.assert_array_equal(one.weights, other.weights)
            assert (one.queries, one.keys) == (other.queries, other.keys)
        return followed


def test_rows_of_a_known_pass_begin_where_those_of_the_followed_one_did(monkeypatch):
    torch.manual_seed(0)
    runs = Runs(SomeAsk(None).eval(), monkeypatch)
    assert [runs(2, 9) for _ in range(3)] == [True, False, False]


SHAPES = [(1, 9), (3, 7), (2, 12), (5, 11), (4, 6)]


def test_texts_of_all_lengths_are_known_after_two_that_differ(monkeypatch):
    torch.manual_seed(0)
    run = Runs(Attend(lambda x: x).eval(), monkeypatch)
    assert [run(*shape) for shape in SHAPES] == [True, True, False, False, False]


@pytest.mark.parametrize("family", ["bert", "gpt2", "llama"])
def test_families_are_known(family, monkeypatch):
    run = Runs(FAMILIES[family].build(), monkeypatch)
    assert not any([run(*shape) for shape in SHAPES][3:])


def test_an_order_that_hangs_on_the_length_is_followed(monkeypatch):
    torch.manual_seed(0)
    run = Runs(Attend(lambda x: x.roll(x.shape[1] // 10, 1)).eval(), monkeypatch)
    run(1, 9), run(3, 7)
    assert run(2, 12)


def test_an_order_that_hangs_on_the_numbers_is_always_followed(monkeypatch):
    torch.manual_seed(0)

    def sort(x):
        return x.gather(1, x[..., :1].argsort(1).expand_as(x))

    run = Runs(Attend(sort).eval(), monkeypatch)
    assert all(run(*shape) for shape in SHAPES)


def test_another_way_through_the_model_is_followed(monkeypatch):
    torch.manual_seed(0)
    run = Runs(Attend(lambda x: x.flip(1) if x.shape[1] == 12 else x).eval(), monkeypatch)
    assert [run(*shape) for shape in SHAPES] == [True, True, True, False, False]


def test_attention_that_no_kernel_computed_is_always_followed(monkeypatch):
    torch.manual_seed(0)
    model = Attend(lambda x: x).eval()
    monkeypatch.setattr(Attend, "forward", handwritten)
    run = Runs(model, monkeypatch)
    assert all(run(*shape) for shape in SHAPES)


def test_own_is_known(monkeypatch):
    run = Runs(load("own").module, monkeypatch)
    assert not any([run(*shape) for shape in SHAPES][2:])
