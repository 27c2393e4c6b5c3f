"""One attention that a module computes in pieces, against the same attention with one plain softmax."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from attnscope.capture import recording
from attnscope.capture.lineage.follow import Lineage
from attnscope.capture.lineage.layout import AXES, CHANNELS, JOINED
from attnscope.capture.record import Seeing
from tests.capture.modules import Heads
from tests.capture.observing import observe
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


class Attending(Heads):
    """Attention with one projection for all, whose core is computed in some way."""

    def __init__(self, core, kernel):
        super().__init__()
        self.out, self.core, self.kernel = nn.Linear(SIZE, SIZE), core, kernel

    def attend(self, *heads):
        return self.core(KERNELS[self.kernel], *heads)

    def forward(self, x):
        return self.out(super().forward(x))


class Layers(nn.Module):
    """Two such layers behind each other, with a norm and a shortcut each."""

    def __init__(self, core, kernel):
        super().__init__()
        self.layers = nn.ModuleList(Attending(core, kernel) for _ in range(2))
        self.norms = nn.ModuleList(nn.LayerNorm(SIZE) for _ in range(2))
        self.embed = nn.Embedding(9, SIZE)

    def forward(self, ids):
        x = self.embed(ids)
        for layer, norm in zip(self.layers, self.norms, strict=True):
            x = x + layer(norm(x))
        return x


def plain_weights(layer, x):
    query, key, _ = layer.split(x)
    return (query @ key.mT / query.shape[-1] ** 0.5).softmax(-1)


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("core", PIECES, ids=lambda core: core.__name__)
def test_pieces_of_one_attention_are_one_map(core, kernel):
    model, ids = Layers(core, kernel).eval(), torch.randint(9, (2, COUNT))
    inputs = []
    for layer in model.layers:
        layer.register_forward_pre_hook(lambda _, given: inputs.append(given[0].clone()))
    record, maps, _ = observe(model, ids)
    with torch.inference_mode():
        expected = [plain_weights(layer, x) for layer, x in zip(model.layers, inputs[:2], strict=True)]
    assert [(s.site.layer, s.site.name, s.batch, s.heads) for s in record.sites] == [
        (0, "layers.0", 2, HEADS),
        (1, "layers.1", 2, HEADS),
    ]
    for kept, weights, site in zip(maps, expected, record.sites, strict=True):
        torch.testing.assert_close(kept.weights, weights, atol=1e-6, rtol=0)
        assert kept.allowed.all()
        assert (site.site.kind, site.offset, kept.queries, kept.keys) == ("encoder", 0, range(12), range(12))


@pytest.mark.parametrize("kernel", KERNELS)
def test_some_rows_of_some_heads_are_read_alone(kernel):
    def read(attention):
        whole, opened = attention.weights(), attention.allowed(0, COUNT)
        assert torch.equal(attention.rows(3, 8, [2, 0, 2]), whole[:, [2, 0, 2], 3:8])
        assert torch.equal(attention.allowed(3, 8), opened[:, :, 3:8])

    model = Attending(chunked_queries, kernel)
    with torch.inference_mode(), recording(model.eval(), [Seeing(read)]) as record:
        model(X)
    assert (len(record.sites), record.failures) == (1, [])


def causal_chunks(kernel, query, key, value):
    outputs = []
    for start in range(0, COUNT, 4):
        scores = query[:, :, start : start + 4] @ key.mT / 2
        future = torch.arange(COUNT) > torch.arange(start, start + 4)[:, None]
        outputs.append(scores.masked_fill(future, -torch.inf).softmax(-1) @ value)
    return torch.cat(outputs, 2)


def growing_keys(kernel, query, key, value):
    parts = [kernel(query[:, :, n - 4 : n], key[:, :, :n], value[:, :, :n]) for n in range(4, COUNT + 1, 4)]
    return torch.cat(parts, 2)


PLACE = torch.arange(COUNT)
MASKED = {  # which keys are open to which queries, the kind, and where the first query stands
    causal_chunks: (PLACE[:, None] >= PLACE, "decoder", 0),
    growing_keys: (PLACE[:, None] // 4 >= PLACE // 4, "encoder", 0),
}


@pytest.mark.parametrize("core", MASKED, ids=lambda core: core.__name__)
def test_pieces_that_have_some_keys_alone_are_placed(core):
    record, (kept,), _ = observe(model := Attending(core, "sdpa"), X)
    query, key, _ = model.split(X)
    opened, kind, offset = MASKED[core]
    weights = (query @ key.mT / 2).masked_fill(~opened, -torch.inf).softmax(-1).detach()
    torch.testing.assert_close(kept.weights, weights, atol=1e-6, rtol=0)
    assert torch.equal(kept.allowed.expand(2, HEADS, -1, -1), opened.expand(2, HEADS, -1, -1))
    assert (record.sites[0].site.kind, record.sites[0].offset) == (kind, offset)


def test_the_last_row_alone_stands_where_it_belongs():
    def last(kernel, query, key, value):
        return kernel(query[:, :, 5:7], key, value).mean(2, keepdim=True)

    record, (kept,), _ = observe(Attending(last, "sdpa"), X)
    assert (record.sites[0].offset, kept.queries, kept.keys) == (5, range(5, 7), range(COUNT))


class BetweenChannels(Attending):
    """Attention from channel to channel, as in models of images."""

    def forward(self, x):
        query, key, value = (t.mT for t in self.split(x))
        weights = (F.normalize(query, dim=-1) @ F.normalize(key, dim=-1).mT).softmax(-1)
        return self.out((weights @ value).permute(0, 3, 1, 2).flatten(2))


def test_channels_are_no_tokens():
    record, maps, _ = observe(nn.Sequential(BetweenChannels(None, "softmax")), X)
    assert not maps
    assert [(layer.name, layer.reason) for layer in record.without_attention] == [("0", CHANNELS)]


class OneAfterTheOther(nn.Module):
    """Several layers in the forward of one module, each of them in chunks."""

    def __init__(self):
        super().__init__()
        self.parts = nn.ParameterList(torch.randn(3, SIZE, SIZE) / 4 for _ in range(3))

    def forward(self, x):
        self.kept = []
        for part in self.parts:
            query, key, value = (x @ matrix for matrix in part)
            self.kept.append((query @ key.mT).softmax(-1)[:, None])
            x = x + torch.cat([(rows @ key.mT).softmax(-1) @ value for rows in query.split(5, 1)], 1)
        return x


class HeadsOfTheirOwn(nn.Module):
    """Heads with projections of their own, in the forward of one module, cast when used."""

    def __init__(self, dtype=torch.float32):
        super().__init__()
        self.dtype = dtype
        self.parts = nn.ParameterList(torch.randn(3, SIZE, 4) for _ in range(HEADS))

    def forward(self, x):
        weights, outputs = [], []
        for part in self.parts:
            query, key, value = ((x.to(self.dtype) @ matrix.to(self.dtype)).float() for matrix in part)
            weights.append((query @ key.mT).softmax(-1))
            outputs.append(weights[-1] @ value)
        self.kept = [torch.stack(weights, 1)]
        return torch.cat(outputs, -1)


class ClassToken(nn.Module):
    """A class token in front of the others, which asks alone, or all of them in chunks."""

    def __init__(self, alone):
        super().__init__()
        self.token, self.alone = nn.Parameter(torch.randn(1, 1, SIZE)), alone
        self.q, self.k, self.v = (nn.Linear(SIZE, SIZE) for _ in range(3))

    def forward(self, x):
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1)
        states = self.q(x[:, 0][:, None] if self.alone else x), self.k(x), self.v(x)
        q, k, v = (t.unflatten(-1, (HEADS, -1)).transpose(1, 2) for t in states)
        self.kept = [(q @ k.mT).softmax(-1)]
        return torch.cat([(rows @ k.mT).softmax(-1) @ v for rows in q.split(5, 2)], 2)


class FiveAxes(nn.Module):
    """Queries in five axes, of which nobody knows where they come from."""

    def forward(self, x):
        return F.scaled_dot_product_attention(*(torch.as_strided(x, (2, 3, 2, 2, 4), (48, 16, 8, 4, 1)),) * 3)


def test_axes_that_nothing_tells_are_named():
    record, maps, _ = observe(nn.Sequential(FiveAxes()), torch.randn(2, 3, SIZE))
    assert not maps
    assert [layer.reason for layer in record.without_attention] == [AXES.format(5)]


def plain_heads(kernel, *heads):
    return kernel(*heads)


class Frames(Attending):
    """Attention within frames, in an order that no torch function of this tool's knowledge made."""

    def forward(self, x):
        parts = torch.as_strided(x, (8, 3, SIZE), (3 * SIZE, SIZE, 1))
        return super().forward(parts)


def test_one_sentence_says_of_all_layers_that_their_parts_cannot_be_placed():
    model = nn.Sequential(*(Frames(plain_heads, "softmax") for _ in range(3)))
    record, *_ = observe(model, X)
    assert [site.batch for site in record.sites] == [8] * 3
    (note,) = record.notes
    assert note.startswith("attention in 8 parts, more than there are texts")
    assert note.endswith("with the positions of that part: * (3 of them)")


class PaddedWindows(Heads):
    """Attention inside of windows of five, the last of which is filled up with zeros."""

    def attend(self, q, k, v):
        self.kept = (q @ k.mT / 2).softmax(-1)
        return self.kept @ v

    def forward(self, x):
        windows = F.pad(x, (0, 0, 0, -x.shape[1] % 5)).unflatten(1, (-1, 5)).flatten(0, 1)
        return super().forward(windows).unflatten(0, (len(x), -1)).flatten(1, 2)[:, : x.shape[1]]


def test_what_goes_to_the_padding_of_windows_is_said():
    model = nn.Sequential(*(PaddedWindows() for _ in range(2)))
    record, maps, *_ = observe(model, torch.randn(2, 8, SIZE))
    (note,) = record.notes
    assert note.startswith("windows that are padded")
    assert note.endswith("sum to less than 1: * (2 of them)")
    last = model[0].kept.unflatten(0, (2, 2))[:, 1, :, :3, :3]  # its last two keys are padding
    torch.testing.assert_close(maps[0].weights[:, :, 5:, 5:], last)
    torch.testing.assert_close(maps[0].weights[:, :, :5].sum(-1), torch.ones(2, HEADS, 5))


def test_whole_attention_needs_no_note():
    record, *_ = observe(nn.Sequential(Attending(plain_heads, "softmax")), X)
    assert record.notes == []


class Joint(nn.Module):
    """Two sequences that attend as one, each through projections of its own; queries may come in chunks."""

    def __init__(self, chunk=17):
        super().__init__()
        self.chunk = chunk
        self.own, self.other = nn.Linear(SIZE, 3 * SIZE), nn.Linear(SIZE, 3 * SIZE)

    def forward(self, x, encoder_hidden_states):
        parts = [self.own(x).chunk(3, -1), self.other(encoder_hidden_states).chunk(3, -1)]
        q, k, v = (
            torch.cat(pair, 1).unflatten(-1, (HEADS, -1)).transpose(1, 2) for pair in zip(*parts, strict=True)
        )
        self.kept = [(q @ k.mT / 2).softmax(-1)]
        return torch.cat([F.scaled_dot_product_attention(part, k, v) for part in q.split(self.chunk, 2)], 2)


def test_two_sequences_that_attend_as_one_in_chunks_are_named():
    record, maps, _ = observe(Joint(chunk=5), X, encoder_hidden_states=OTHER)
    assert (maps, record.sites) == ([], [])
    assert [layer.reason for layer in record.without_attention] == [JOINED]


class Memory(Attending):
    """Keys and values that were learned stand in front of those of the text; queries have a bias for each."""

    def __init__(self):
        super().__init__(None, "softmax")
        self.memory, self.bias = nn.Parameter(torch.randn(2, 1, HEADS, 3, 4)), nn.Linear(4, COUNT + 3)

    def forward(self, x):
        query, *sides = self.split(x)
        more = self.memory.expand(-1, len(x), -1, -1, -1)
        key, value = (torch.cat(pair, 2) for pair in zip(more, sides, strict=True))
        future = torch.ones(COUNT, COUNT + 3).triu(4).bool()
        self.kept = [(query @ key.mT + self.bias(query)).masked_fill(future, -torch.inf).softmax(-1)]
        return self.kept[0] @ value


KEEPING = {  # what a module is given, the kind of its attention, where it begins, and how many keys it has
    "layers in one forward stay apart": (OneAfterTheOther, [X], "encoder", 0, COUNT),
    "projections of one input are heads": (HeadsOfTheirOwn, [X], "encoder", 0, COUNT),
    "cast projections of one input": (lambda: HeadsOfTheirOwn(torch.float64), [X], "encoder", 0, COUNT),
    "a class token in front asks alone": (lambda: ClassToken(True), [X], "encoder", 0, COUNT + 1),
    "a class token in front": (lambda: ClassToken(False), [X], "encoder", 0, COUNT + 1),
    "two sequences attend as one": (Joint, [X, OTHER], "encoder", 0, COUNT + 5),
    "learned keys in front": (Memory, [X], "decoder", 3, COUNT + 3),
}


@pytest.mark.parametrize("name", KEEPING)
def test_what_a_module_weighs_in_one_forward_stands_at_its_places(name):
    made, given, kind, offset, keys = KEEPING[name]
    model = made()
    record, maps, _ = observe(model, *given)
    assert len(maps) == len(model.kept)
    for site, kept, weights in zip(record.sites, maps, model.kept, strict=True):
        torch.testing.assert_close(kept.weights, weights, atol=1e-6, rtol=0)
        assert (site.site.kind, site.offset, site.heads, site.keys) == (kind, offset, weights.shape[1], keys)


def test_more_rows_than_are_followed_are_said(monkeypatch):
    monkeypatch.setattr("attnscope.capture.lineage.layout.MOST", HEADS)
    record, *_ = observe(nn.Sequential(Attending(chunked_queries, "softmax")), X)
    assert any("rows are not followed" in note for note in record.notes)


class Patches(nn.Module):
    """Tokens are patches of a picture that lie over each other, padded at its borders (T2T)."""

    def __init__(self, pad):
        super().__init__()
        self.attend, self.narrow, self.pad = Attending(plain_heads, "softmax"), nn.Linear(3 * 9, SIZE), pad

    def forward(self, picture):
        if self.pad == "unfold":
            patches = F.unfold(picture, 3, stride=2, padding=1).mT  # [text, token, channel]
        else:
            wide = F.pad(picture, (1, 1, 1, 1)).unfold(2, 3, 2).unfold(3, 3, 2)
            patches = wide.permute(0, 2, 3, 1, 4, 5).flatten(3).flatten(1, 2)
        return self.attend(self.narrow(patches))


@pytest.mark.parametrize("pad", ["unfold", "pad"])
def test_patches_that_begin_with_padding_are_tokens_like_the_others(pad):
    model = Patches(pad)
    _, (kept,), _ = observe(model, torch.randn(2, 3, 9, 9))
    assert kept.weights.shape == (2, HEADS, 25, 25)
    torch.testing.assert_close(kept.weights.sum(-1), torch.ones(2, HEADS, 25))


def test_the_second_layer_of_a_model_of_transformers_is_not_followed(monkeypatch):
    seen = []
    see = Lineage.see

    def count(self, call):
        seen.extend([] if self.recorder.rests else [call.name])
        see(self, call)

    monkeypatch.setattr(Lineage, "see", count)

    def follow(layers):
        seen.clear()
        model = tiny("GPT2", vocab_size=99, n_embd=32, n_layer=layers, n_head=4).build()
        record, *_ = observe(model, **inputs("text"))
        assert len(record.sites) == layers
        return len(seen)

    assert follow(6) - follow(2) < follow(2) / 4  # what runs between the layers


class Mixed(nn.Module):
    """Layers of transformers, and layers whose queries come in chunks, which lineage puts together."""

    def __init__(self):
        super().__init__()
        self.known = FAMILIES["bert"].build()
        self.narrow = nn.Linear(32, SIZE)
        self.chunked = nn.ModuleList(Attending(chunked_queries, "softmax") for _ in range(2))

    def forward(self, ids):
        states = self.narrow(self.known(ids).last_hidden_state)
        for layer in self.chunked:
            self.given = states
            states = layer(states)
        return states


@pytest.mark.parametrize("passes", [1, 3])
def test_chunks_behind_layers_of_transformers_are_put_together(passes):
    model, ids = Mixed(), torch.randint(4, 99, (2, COUNT))
    _, maps, _ = observe(model, call=lambda: [model(ids) for _ in range(passes)])
    *_, kept = maps
    assert len(maps) == 5 * passes
    with torch.inference_mode():
        torch.testing.assert_close(kept.weights, plain_weights(model.chunked[1], model.given))


class Bare(nn.Module):
    def forward(self, *given):
        return F.scaled_dot_product_attention(*given, enable_gqa=True)


@pytest.mark.parametrize("queries", [1, 3])
@pytest.mark.parametrize("keys", [1, 5])
@pytest.mark.parametrize(("heads", "group"), [(1, 2), (2, 1), (2, 2), (3, 1)])
def test_heads_of_a_bare_kernel_are_heads(heads, group, queries, keys):
    torch.manual_seed(0)
    query, key = torch.randn(2, heads * group, queries, 4), torch.randn(2, heads, keys, 4)
    unit = torch.eye(keys).expand(2, heads, keys, keys)  # the output is the weights
    _, (kept,), weights = observe(Bare(), query, key, unit)
    assert torch.allclose(kept.weights, weights, atol=1e-6)
