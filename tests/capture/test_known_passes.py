"""A known pass skips lineage and gives the same maps; any other pass is followed."""

import gc
from contextlib import suppress
from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from attnscope.capture import KnownPasses, recording
from attnscope.capture.lineage.follow import Lineage
from attnscope.capture.record import FunctionObserver
from attnscope.errors import SizeError
from attnscope.models import load
from tests.capture.modules import Heads
from tests.capture.observing import MapObserver
from tests.capture.placing.test_chunked import longformer, texts
from tests.capture.tiny import FAMILIES, inputs

SIZE, HEADS = 16, 2


class Attend(Heads):
    """Attention in some way over what ``turn`` makes of the states."""

    def __init__(self, turn=None, way=None):
        super().__init__(way or by_the_kernel, SIZE, HEADS)
        self.embed, self.turn = nn.Embedding(50, SIZE), turn or nn.Identity()

    def forward(self, ids):
        return super().forward(self.turn(self.embed(ids)))


def by_the_kernel(self, q, k, v):
    return F.scaled_dot_product_attention(q, k, v)


def by_hand(self, q, k, v):
    return (q @ k.mT / (SIZE // HEADS) ** 0.5).softmax(-1) @ v


def at_two_positions(self, q, k, v):
    return F.scaled_dot_product_attention(q[:, :, 2:4], k, v)


def order(x):
    """A place for each token, which hangs on the numbers.  -> [text, token, 1]"""
    return (x[..., :1].abs() * 100).long() % x.shape[1]


def writing(write):
    """A function that writes into a copy of states, at places [text, token] that hang on their numbers."""

    def written(x):
        copy = x.clone()
        write(copy, order(x)[..., 0])
        return copy

    return written


MOVED = {  # how states change places by their numbers
    "__getitem__": lambda x: x[:, order(x)[0, :, 0]],
    "gather": lambda x: x.gather(1, order(x).expand_as(x)),
    "index_select": lambda x: x.index_select(1, order(x)[0, :, 0]),
    "take": lambda x: x.take(order(x) * SIZE + torch.arange(SIZE)),
    "take_along_dim": lambda x: x.take_along_dim(order(x), 1),
    "masked_select": lambda x: x.masked_select(x[..., :1] > -9).view_as(x),
    "__setitem__": writing(lambda x, to: x.__setitem__((slice(None), to[0]), x.flip(1))),
    "index_put_": writing(lambda x, to: x.index_put_((0 * to, to), x.flip(1))),
    "index_copy_": writing(lambda x, to: x.index_copy_(1, to[0], x.flip(1))),
    "scatter_": writing(lambda x, to: x.scatter_(1, to[..., None].expand_as(x), x.flip(1))),
    "masked_scatter_": writing(lambda x, to: x.masked_scatter_(x > 0, x.flip(1))),
    "sort": lambda x: x.sort(1).values,
    "argsort": lambda x: x * x.argsort(1),
    "topk": lambda x: x.topk(x.shape[1], 1).values,
}


def reordered(family, move):
    """A family's model, whose states change places by their numbers before its first layer."""
    model = FAMILIES[family].build()
    encoder = model.get_encoder() if FAMILIES[family].inputs == "pair" else model
    encoder.get_input_embeddings().register_forward_hook(lambda *call: move(call[-1]))
    if FAMILIES[family].inputs == "pair":
        forward = model.forward
        model.forward = lambda ids: forward(ids, decoder_input_ids=ids)
    return model


TEXT_FAMILIES = [name for name, family in FAMILIES.items() if family.inputs in ("text", "pair")]

SHAPES = [(1, 9), (3, 7), (2, 12), (5, 11), (4, 6)]
FOLLOWED = {  # a model, the shapes of its texts, and which of them are followed
    "one shape, of which some rows ask": (lambda: Attend(way=at_two_positions), [(2, 9)] * 3, "ynn"),
    "all lengths, after two that differ": (Attend, SHAPES, "yynnn"),
    "an order that hangs on the length": (
        lambda: Attend(lambda x: x.roll(x.shape[1] // 10, 1)),
        SHAPES[:3],
        "yyy",
    ),
    "an order that hangs on the numbers": (
        lambda: Attend(lambda x: x.gather(1, x[..., :1].argsort(1).expand_as(x))),
        SHAPES,
        "yyyyy",
    ),
    **{f"moved by {name}": (partial(Attend, MOVED[name]), SHAPES, "yyyyy") for name in MOVED},
    **{
        f"{family} moved by {name}": (partial(reordered, family, MOVED[name]), SHAPES[:4], "yyyy")
        for family in TEXT_FAMILIES
        for name in ("__getitem__", "gather")
    },
    "another way through the model": (
        lambda: Attend(lambda x: x.flip(1) if x.shape[1] == 12 else x),
        SHAPES,
        "yyynn",
    ),
    "attention that no kernel computed": (lambda: Attend(way=by_hand), SHAPES, "yyyyy"),
    **{name: (FAMILIES[name].build, SHAPES, "yy?nn") for name in ("bert", "gpt2", "llama")},
    "own": (lambda: load("own").module, SHAPES, "yynnn"),
}


@pytest.mark.sweep(7)
@pytest.mark.parametrize("name", FOLLOWED)
def test_known_passes_skip_lineage_with_equal_results(name, monkeypatch):
    torch.manual_seed(0)
    make, shapes, expected = FOLLOWED[name]
    model, known, seen, see = make().eval(), KnownPasses(), [], Lineage.on_torch_call
    monkeypatch.setattr(
        Lineage, "on_torch_call", lambda lineage, call: seen.append(call.name) or see(lineage, call)
    )

    def work():
        keep = MapObserver()
        with torch.inference_mode(), recording(model, [keep], warn=False) as record:
            model(ids)
        return keep, record

    for shape, followed in zip(shapes, expected, strict=True):
        ids = torch.randint(4, 49, shape)
        seen.clear()
        mine, record = known.run(work)
        assert bool(seen) == (followed == "y") or followed == "?"
        theirs, whole = work()
        assert [site.site for site in record.sites] == [site.site for site in whole.sites]
        assert (record.without_attention, record.notes) == (whole.without_attention, whole.notes)
        for one, other in zip(mine.maps, theirs.maps, strict=True):
            np.testing.assert_array_equal(one.weights, other.weights)
            assert (one.queries, one.keys) == (other.queries, other.keys)


def test_ambiguous_pass_is_followed_immediately():
    ran = []
    model, known = Attend(lambda x: ran.append(x.shape[:2]) or x).eval(), KnownPasses()
    for shape in SHAPES[:3]:  # of one text, 1 may be the number of texts or a constant
        known.run(partial(record_alone, model, torch.ones(shape, dtype=torch.int64)))
    assert ran == SHAPES[:3]


def record_alone(model, ids):
    with torch.inference_mode(), recording(model, warn=False):
        model(ids)


@pytest.fixture
def tensors_made():
    """Counts the tensors that are there beside those of before, while no garbage is collected."""

    def living():
        return {id(each) for each in gc.get_objects() if isinstance(each, torch.Tensor)}

    gc.collect()
    before = living()
    gc.disable()
    yield lambda: len(living() - before)
    gc.enable()


IDS = {"ids": torch.ones(2, 9, dtype=torch.int64)}
HOLDING = {name: (FAMILIES[name].build, inputs("text")) for name in ("bert", "gpt2", "llama")}
HOLDING |= {"chunks": (longformer, texts()), "by hand": (partial(Attend, way=by_hand), IDS)}
HOLDING |= {"a function": (lambda: Attend(ours_of), IDS)}


def ours_of(x):
    """The same states, by way of a function that holds them."""
    return x.clone().map_(x, lambda mine, theirs: theirs if len(x) else mine)


@pytest.mark.sweep
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("name", HOLDING)
def test_pass_leaves_no_tensors_in_cycles_or_known_passes(name, fails, tensors_made):
    make, given = HOLDING[name]
    model, known = make().eval(), KnownPasses()

    def fail(attention):
        if fails:
            raise SizeError("enough")

    def work():
        with torch.inference_mode(), recording(model, [FunctionObserver(fail)], warn=False):
            model(**given)

    with torch.inference_mode():
        model(**given)  # what the library itself keeps, as that of transformers 5.0 does
    plain = tensors_made()
    with suppress(SizeError):
        known.run(work)
    for _ in range(3):
        with suppress(SizeError):
            known.run(work)
    assert tensors_made() <= plain


def test_unknown_passes_do_not_accumulate():
    lengths = iter(range(5, 60))
    model, known = Attend(lambda x: [x.mul(1) for _ in range(next(lengths))][-1]).eval(), KnownPasses()
    for _ in range(24):
        known.run(partial(record_alone, model, torch.ones((2, 9), dtype=torch.int64)))
    assert len(known.programs) <= known.misses + 1 == 17
