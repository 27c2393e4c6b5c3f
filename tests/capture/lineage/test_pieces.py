"""Attention computed in pieces, against the same attention with one plain softmax."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from attnscope.capture import recording
from attnscope.capture.lineage.follow import Lineage
from attnscope.capture.lineage.layout import AXES, CHANNELS, JOINED
from attnscope.capture.record import FunctionObserver
from tests.capture.modules import FunctionModule, Heads, Kernel
from tests.capture.observing import check_kept, check_parts, observe
from tests.capture.placing.mixing_modules import Chain, Stream, attend
from tests.capture.tiny import FAMILIES, inputs, tiny

SIZE, HEADS, COUNT = 16, 4, 12
X, OTHER = (torch.randn(2, count, SIZE, generator=torch.Generator().manual_seed(1)) for count in (COUNT, 5))


def plain(query, key, value):
    """A softmax and its product, one head or many."""
    return (query @ key.mT / query.shape[-1] ** 0.5).softmax(-1) @ value


KERNELS = {"softmax": plain, "sdpa": F.scaled_dot_product_attention}


def chunked_queries(kernel, query, key, value):
    return torch.cat([kernel(part, key, value) for part in query.split(5, 2)], 2)


def chunked_queries_into_a_buffer(kernel, query, key, value):
    output = torch.empty_like(query)
    for start in range(0, COUNT, 4):
        rows = slice(start, start + 4)
        output[:, :, rows] = kernel(query[:, :, rows], key, value)
    return output


def head_by_head(kernel, query, key, value):
    return torch.stack([kernel(query[:, h], key[:, h], value[:, h]) for h in range(HEADS)], 1)


def heads_by_threes(kernel, query, key, value):
    parts = zip(query.split(3, 1), key.split(3, 1), value.split(3, 1), strict=True)
    return torch.cat([kernel(*part) for part in parts], 1)


def text_by_text(kernel, query, key, value):
    return torch.stack([kernel(*one) for one in zip(query, key, value, strict=True)])


def text_by_text_head_by_head(kernel, query, key, value):
    texts = zip(query, key, value, strict=True)
    return torch.cat([head_by_head(kernel, *(x[None] for x in one)) for one in texts])


def slices_of_batch_times_head(kernel, query, key, value):
    flat = [x.reshape(-1, COUNT, SIZE // HEADS) for x in (query, key, value)]
    output = torch.zeros(flat[0].shape)
    for start in range(0, len(output), 3):
        output[start : start + 3] = kernel(*(x[start : start + 3] for x in flat))
    return output.view(query.shape)


def five_axes_one_of_them_empty(kernel, query, key, value):
    return kernel(*(x.unsqueeze(2) for x in (query, key, value))).squeeze(2)


def queries_out_of_order(kernel, query, key, value):
    order = torch.randperm(COUNT)
    return kernel(query[:, :, order], key, value)[:, :, order.argsort()]


def keys_out_of_order(kernel, query, key, value):
    order = torch.randperm(COUNT)
    return kernel(query, key[:, :, order], value[:, :, order])


PIECES = [
    *(chunked_queries, chunked_queries_into_a_buffer, head_by_head, heads_by_threes, text_by_text),
    *(text_by_text_head_by_head, slices_of_batch_times_head, five_axes_one_of_them_empty),
    *(queries_out_of_order, keys_out_of_order),
]


def in_pieces(core, kernel="softmax"):
    """A layer that keeps its plain weights, and computes its output in some pieces by some kernel."""

    def way(self, q, k, v):
        self.keep((q @ k.mT / 2).softmax(-1))
        return core(KERNELS[kernel], q, k, v)

    return Stream(way)


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("core", PIECES, ids=lambda core: core.__name__)
def test_attention_in_pieces_is_one_map(core, kernel):
    record, maps, _ = observe(model := Chain(layers=[in_pieces(core, kernel) for _ in range(2)]), X)
    check_kept(model, maps)
    for layer, (site, kept) in enumerate(zip(record.sites, maps, strict=True)):
        assert (site.site.layer, site.site.name, site.batch, site.heads) == (layer, f"layers.{layer}", 2, 4)
        assert (site.site.kind, site.offset, kept.queries, kept.keys) == ("encoder", 0, range(12), range(12))
        assert kept.allowed.all()
    assert record.notes == []


@pytest.mark.parametrize("kernel", KERNELS)
def test_piecewise_rows_of_some_heads_equal_full_map(kernel):
    with (
        torch.inference_mode(),
        recording(model := in_pieces(chunked_queries, kernel), [FunctionObserver(check_parts)]) as record,
    ):
        model(X)
    assert (len(record.sites), record.failures) == (1, [])


def between_channels(self, q, k, v):
    """Attention from channel to channel, as in models of images."""
    return ((F.normalize(q.mT, dim=-1) @ F.normalize(k.mT, dim=-1).mT).softmax(-1) @ v.mT).mT


PLACE = torch.arange(COUNT)


def causal_chunks(self, q, k, v):
    chunks = []
    for rows, places in zip(q.split(4, 2), PLACE.split(4), strict=True):
        chunks.append((rows @ k.mT).masked_fill(places[:, None] < PLACE, -torch.inf).softmax(-1))
    self.keep(torch.cat(chunks, 2))
    return torch.cat([weights @ v for weights in chunks], 2)


def growing_keys(self, q, k, v):
    later = PLACE[:, None] // 4 < PLACE // 4
    self.keep((q @ k.mT / 2).masked_fill(later, -torch.inf).softmax(-1))
    parts = [(q[:, :, n - 4 : n], k[:, :, :n], v[:, :, :n]) for n in range(4, COUNT + 1, 4)]
    return torch.cat([F.scaled_dot_product_attention(*part) for part in parts], 2)


def two_rows_alone(self, q, k, v):
    self.keep((q[:, :, 5:7] @ k.mT / 2).softmax(-1))
    return F.scaled_dot_product_attention(q[:, :, 5:7], k, v).mean(2, keepdim=True)


def with_means_of_earlier_keys(self, q, k, v):
    """Causal attention that also sees the mean of each earlier three."""
    k, v = (torch.cat([part, part.unflatten(2, (-1, 3)).mean(3)], 2) for part in (k, v))
    opened = torch.cat([PLACE, PLACE[2::3]]) <= PLACE[:, None]  # the last token of each key
    self.keep((q @ k.mT / 2).masked_fill(~opened, -torch.inf).softmax(-1))
    return F.scaled_dot_product_attention(q, k, v, attn_mask=opened)


def one_after_the_other(m, x):
    """Several layers in one forward, each of them in chunks."""
    for part in m.parts:
        query, key, value = (x @ matrix for matrix in part)
        m.keep((query @ key.mT).softmax(-1)[:, None])
        x = x + torch.cat([(rows @ key.mT).softmax(-1) @ value for rows in query.split(5, 1)], 1)
    return x


def heads_of_their_own(m, x):
    """Heads with projections of their own, in one forward, cast when used."""
    weights, outputs = [], []
    for part in m.parts:
        query, key, value = ((x.double() @ matrix.double()).float() for matrix in part)
        weights.append((query @ key.mT).softmax(-1))
        outputs.append(weights[-1] @ value)
    m.keep(torch.stack(weights, 1))
    return torch.cat(outputs, -1)


def projections(count, size):
    return nn.ParameterList(torch.randn(3, SIZE, size) / 4 for _ in range(count))


def layers_in_one_forward():
    return FunctionModule(one_after_the_other, parts=projections(3, SIZE))


def own_heads():
    return FunctionModule(heads_of_their_own, parts=projections(HEADS, 4))


def behind_a_class_token(m, x):
    """A class token in front of the others asks alone, or all of them in chunks."""
    x = torch.cat([m.token.expand(len(x), -1, -1), x], 1)
    states = m.q(x[:, 0][:, None] if m.alone else x), m.k(x), m.v(x)
    q, k, v = (t.unflatten(-1, (HEADS, -1)).transpose(1, 2) for t in states)
    m.keep((q @ k.mT).softmax(-1))
    return torch.cat([(rows @ k.mT).softmax(-1) @ v for rows in q.split(5, 2)], 2)


def class_token(alone):
    layers = {name: nn.Linear(SIZE, SIZE) for name in "qkv"}
    return FunctionModule(
        behind_a_class_token, token=nn.Parameter(torch.randn(1, 1, SIZE)), alone=alone, **layers
    )


def jointly(m, x, encoder_hidden_states):
    """Two sequences attend as one, each through projections of its own; queries may come in chunks."""
    parts = [m.own(x).chunk(3, -1), m.other(encoder_hidden_states).chunk(3, -1)]
    q, k, v = (
        torch.cat(pair, 1).unflatten(-1, (HEADS, -1)).transpose(1, 2) for pair in zip(*parts, strict=True)
    )
    m.keep((q @ k.mT / 2).softmax(-1))
    return torch.cat([F.scaled_dot_product_attention(part, k, v) for part in q.split(m.chunk, 2)], 2)


def joint(chunk=17):
    return FunctionModule(
        jointly, own=nn.Linear(SIZE, 3 * SIZE), other=nn.Linear(SIZE, 3 * SIZE), chunk=chunk
    )


class Memory(Heads):
    """Keys and values that were learned stand in front of those of the text; queries have a bias for each."""

    def __init__(self):
        super().__init__()
        self.memory, self.bias = nn.Parameter(torch.randn(2, 1, HEADS, 3, 4)), nn.Linear(4, COUNT + 3)

    def attend(self, q, *sides):
        more = self.memory.expand(-1, len(q), -1, -1, -1)
        key, value = (torch.cat(pair, 2) for pair in zip(more, sides, strict=True))
        future = torch.ones(COUNT, COUNT + 3).triu(4).bool()
        return self.keep((q @ key.mT + self.bias(q)).masked_fill(future, -torch.inf).softmax(-1)) @ value


def unfolded(m, picture):
    """Tokens are patches of a picture that lie over each other, padded at its borders (T2T)."""
    return m.attend(m.narrow(F.unfold(picture, 3, stride=2, padding=1).mT))


def padded_and_unfolded(m, picture):
    patches = F.pad(picture, (1, 1, 1, 1)).unfold(2, 3, 2).unfold(3, 3, 2).permute(0, 2, 3, 1, 4, 5)
    return m.attend(m.narrow(patches.flatten(3).flatten(1, 2)))


def patches(run):
    return FunctionModule(run, attend=Stream(attend), narrow=nn.Linear(3 * 9, SIZE))


PICTURE = torch.randn(2, 3, 9, 9)
PLACED = {  # what a module is given, the kind of its attention, where it begins, and how many keys it has
    "causal chunks": (lambda: Stream(causal_chunks), [X], "decoder", 0, COUNT),
    "pieces with more and more keys": (lambda: Stream(growing_keys), [X], "encoder", 0, COUNT),
    "two rows alone": (lambda: Stream(two_rows_alone), [X], "encoder", 5, COUNT),
    "keys behind the text": (lambda: Stream(with_means_of_earlier_keys), [X], "decoder", 0, COUNT + 4),
    "layers in one forward stay apart": (layers_in_one_forward, [X], "encoder", 0, COUNT),
    "cast projections of one input are heads": (own_heads, [X], "encoder", 0, COUNT),
    "a class token in front asks alone": (lambda: class_token(alone=True), [X], "encoder", 0, COUNT + 1),
    "a class token in front": (lambda: class_token(alone=False), [X], "encoder", 0, COUNT + 1),
    "two sequences attend as one": (joint, [X, OTHER], "encoder", 0, COUNT + 5),
    "learned keys in front": (Memory, [X], "decoder", 3, COUNT + 3),
    "padded patches": (lambda: patches(padded_and_unfolded), [PICTURE], "encoder", 0, 25),
    "patches that are padded when they are cut": (lambda: patches(unfolded), [PICTURE], "encoder", 0, 25),
}


@pytest.mark.parametrize("name", PLACED)
def test_pieces_of_one_forward_are_placed(name):
    made, given, kind, offset, keys = PLACED[name]
    record, maps, _ = observe(model := made(), *given)
    check_kept(model, maps)
    for site, kept in zip(record.sites, maps, strict=True):
        count = kept.weights.shape[2]
        assert (site.site.kind, site.offset, site.heads) == (kind, offset, kept.weights.shape[1])
        if name == "learned keys in front":
            rows = [str(number) for number in range(count)]
            assert [token.text for token in kept.queries] == rows
            assert [token.text for token in kept.keys] == [*(f"[memory {at}]" for at in range(3)), *rows]
            continue
        assert (kept.queries, kept.keys) == (range(offset, offset + count), range(keys))
        assert torch.equal(kept.allowed.expand_as(kept.weights), kept.weights > 0)


def in_five_axes(m, x):
    """Nobody knows where these axes come from."""
    return F.scaled_dot_product_attention(*(torch.as_strided(x, (2, 3, 2, 2, 4), (48, 16, 8, 4, 1)),) * 3)


NAMED = {  # what stands at no tokens, what it is given, and the reason
    "channels": (lambda: Stream(between_channels), [X], CHANNELS),
    "axes of unknown use": (
        lambda: FunctionModule(in_five_axes),
        [X[:, :3].contiguous()],
        AXES.format(5),
    ),
    "two sequences that attend as one in chunks": (lambda: joint(chunk=5), [X, OTHER], JOINED),
}


@pytest.mark.parametrize("name", NAMED)
def test_unplaceable_attention_is_named_with_the_reason(name):
    made, given, reason = NAMED[name]
    record, *_ = observe(made(), *given)
    assert record.sites == []
    assert [layer.reason for layer in record.without_attention] == [reason]


class Frames(Stream):
    """Attention within frames, in an order that no torch function of this tool's knowledge made."""

    def forward(self, x):
        return super().forward(torch.as_strided(x, (8, 3, SIZE), (3 * SIZE, SIZE, 1)))


def test_unplaced_parts_of_all_layers_share_one_note():
    record, *_ = observe(nn.Sequential(*(Frames(attend) for _ in range(3))), X)
    assert [site.batch for site in record.sites] == [8] * 3
    (note,) = record.notes
    assert note.startswith("attention in 8 parts, more than there are texts")
    assert note.endswith("columns are positions within a part: * (3 of them)")


class PaddedWindows(Heads):
    """Attention inside of windows of five, the last of which is filled up with zeros."""

    def forward(self, x):
        windows = F.pad(x, (0, 0, 0, -x.shape[1] % 5)).unflatten(1, (-1, 5)).flatten(0, 1)
        return super().forward(windows).unflatten(0, (len(x), -1)).flatten(1, 2)[:, : x.shape[1]]


def test_weight_on_window_padding_is_noted():
    model = nn.Sequential(*(PaddedWindows(attend) for _ in range(2)))
    record, maps, *_ = observe(model, torch.randn(2, 8, SIZE))
    (note,) = record.notes
    assert note.startswith("padded windows")
    assert note.endswith("sum to less than 1: * (2 of them)")
    last = model[0].kept[-1].unflatten(0, (2, 2))[:, 1, :, :3, :3]  # its last two keys are padding
    torch.testing.assert_close(maps[0].weights[:, :, 5:, 5:], last)
    torch.testing.assert_close(maps[0].weights[:, :, :5].sum(-1), torch.ones(2, HEADS, 5))


def test_row_limit_of_lineage_is_noted(monkeypatch):
    monkeypatch.setattr("attnscope.capture.lineage.layout.MOST", HEADS)
    record, *_ = observe(nn.Sequential(in_pieces(chunked_queries)), X)
    assert any("rows are not traced" in note for note in record.notes)


def test_lineage_skips_later_layers_of_transformers_models(monkeypatch):
    seen = []
    see = Lineage.on_torch_call

    def count(self, call):
        seen.extend([] if self.recorder.lineage_paused else [call.name])
        see(self, call)

    monkeypatch.setattr(Lineage, "on_torch_call", count)

    def follow(layers):
        seen.clear()
        model = tiny("GPT2", vocab_size=99, n_embd=32, n_layer=layers, n_head=4).build()
        record, *_ = observe(model, **inputs("text"))
        assert len(record.sites) == layers
        return len(seen)

    assert follow(6) - follow(2) < follow(2) / 4  # what runs between the layers


def in_chunks_behind_a_known_model(m, ids):
    """Layers of transformers, and layers whose queries come in chunks, which lineage puts together."""
    return m.chunked(m.narrow(m.known(ids).last_hidden_state))


@pytest.mark.parametrize("passes", [1, 3])
def test_chunks_after_transformers_layers_are_joined(passes):
    known, chunked = FAMILIES["bert"].build(), Chain(layers=[in_pieces(chunked_queries) for _ in range(2)])
    model = FunctionModule(
        in_chunks_behind_a_known_model, known=known, narrow=nn.Linear(32, SIZE), chunked=chunked
    )
    ids = torch.randint(4, 99, (2, COUNT))
    _, maps, _ = observe(model, call=lambda: [model(ids) for _ in range(passes)])
    assert len(maps) == 5 * passes
    check_kept(model, maps)


@pytest.mark.parametrize("queries", [1, 3])
@pytest.mark.parametrize("keys", [1, 5])
@pytest.mark.parametrize(("heads", "group"), [(1, 2), (2, 1), (2, 2), (3, 1)])
def test_heads_of_a_bare_kernel_are_not_positions(heads, group, queries, keys):
    query, key = torch.randn(2, heads * group, queries, 4), torch.randn(2, heads, keys, 4)
    unit = torch.eye(keys).expand(2, heads, keys, keys)  # the output is the weights
    _, (kept,), weights = observe(Kernel(), query, key, unit, enable_gqa=True)
    assert torch.allclose(kept.weights, weights, atol=1e-6)
