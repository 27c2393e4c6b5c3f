"""Projections, the inputs of each head, and the residual that its attention is added to, by family."""

import pytest
import torch
from torch import nn

from attnscope.capture import recording
from attnscope.capture.projections import PROOF, Circuits, Projections, Residuals
from attnscope.capture.record import FunctionObserver
from attnscope.models import load
from tests.capture.modules import FunctionModule, Kernel
from tests.capture.tiny import DECODER, FAMILIES, SIZES, inputs, tiny

SMALL = {"hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 2, "vocab_size": 99}
MORE = {
    "bloom": tiny("Bloom", vocab_size=99, hidden_size=32, n_layer=2, n_head=4),
    "falcon": tiny("Falcon", **SMALL, multi_query=True),
    "gpt-neox": tiny("GPTNeoX", **SMALL, intermediate_size=32),
    "opt": tiny("OPT", **SMALL, ffn_dim=32, word_embed_proj_dim=32, max_position_embeddings=64),
    "phi": tiny("Phi", **SMALL, intermediate_size=32, pad_token_id=0),
    "glm4": tiny("Glm4", **DECODER, head_dim=8, pad_token_id=0),
    "olmo2": tiny("Olmo2", **DECODER, pad_token_id=0),
    "qwen2": tiny("Qwen2", **DECODER),
    "roberta": tiny("Roberta", **SIZES, num_hidden_layers=2, max_position_embeddings=64),
    "distilbert": tiny("DistilBert", vocab_size=99, dim=32, n_layers=2, n_heads=4, hidden_dim=32),
}
ALL = FAMILIES | MORE
ROTATED = {"vocab_size": 99, "n_embd": 32, "n_layer": 2, "n_head": 4, "rotary_dim": 4}
OTHERS = {
    "gptj": tiny("GPTJ", **ROTATED),
    "codegen": tiny("CodeGen", **ROTATED),
    "cohere": tiny("Cohere", **DECODER),
    "granite": tiny("Granite", **DECODER, residual_multiplier=0.5),
}


def random_family(name):
    """A random model of a family and its inputs; biases are random too, which are 0 in a new model."""
    torch.manual_seed(0)
    family = (ALL | OTHERS)[name]
    model = family.build()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.1)
    return model, inputs(family.inputs)


def find(finder, model, *given, **named):
    """What an observer of its own pass finds in a model, and the record of that pass."""
    with torch.inference_mode(), finder.watching(model), recording(model, [finder]) as record:
        model(*given, **named)
    return finder, record


@pytest.mark.sweep
@pytest.mark.parametrize("name", ALL)
def test_projected_heads_sum_to_block_output(name):
    model, given = random_family(name)
    projections, record = find(Projections(), model, **given)
    assert [site.site for site in record.sites] == projections.sites
    assert set(projections.by_site) == set(projections.sites)
    assert projections.difference <= PROOF

    sums, outputs = [], []
    for path in {each.name for each in projections.by_site.values()}:
        module = model.get_submodule(path)
        module.register_forward_hook(lambda _, __, output, path=path: outputs.append((path, output)))

    def add_up(attention):
        """Weights times values times the projection, for all rows, head by head."""
        projection, weights, total = projections.by_site[attention.site], attention.weights(), 0
        groups = attention.heads // attention.values.shape[1]
        for head in range(attention.heads):
            vectors = attention.values[:, head // groups] @ projection.weight[head]  # [batch, key, width]
            total = total + torch.einsum("bij,bjw->biw", weights[:, head], vectors)
        sums.append((projection.name, total if projection.bias is None else total + projection.bias))

    with torch.inference_mode(), recording(model, [FunctionObserver(add_up)]):
        model(**given)
    assert [path for path, _ in sums] == [path for path, _ in outputs]
    for (path, ours), (_, theirs) in zip(sums, outputs, strict=True):
        gap = (ours - theirs.reshape(ours.shape)).abs().max() / theirs.abs().max()
        assert gap <= 1e-5, path


def by_hand(m, x):
    """Attention as people write it, with a name for its output that says nothing."""
    q, k, v = (part.unflatten(-1, (4, 4)).transpose(1, 2) for part in (m.x3(x), m.x1(x), x))
    mixed = torch.softmax(q @ k.mT / 2, -1) @ v
    return m.x2(mixed.transpose(1, 2).flatten(2))


def by_torch(m, x):
    return m.mha(x, x, x)[0]


FOREIGN = {  # a model, and its projection
    "by hand": (lambda: FunctionModule(by_hand, **{f"x{n}": nn.Linear(16, 16) for n in (1, 2, 3)}), "x2"),
    "batch first": (
        lambda: FunctionModule(by_torch, mha=nn.MultiheadAttention(16, 4, batch_first=True)),
        "mha.out_proj",
    ),
    "batch second": (lambda: FunctionModule(by_torch, mha=nn.MultiheadAttention(16, 4)), "mha.out_proj"),
}


@pytest.mark.parametrize("how", FOREIGN)
def test_projection_is_identified_by_its_values(how):
    torch.manual_seed(0)
    (made, name), projections = FOREIGN[how], Projections()
    model = made().eval()
    with projections.watching(model), recording(model, [projections]):  # with gradients: no fast path
        model(torch.randn(2, 7, 16))
    assert [found.name for found in projections.by_site.values()] == [name]


def test_kernel_without_projection_has_none():
    projections, _ = find(Projections(), Kernel(), *torch.randn(3, 1, 1, 5, 8))
    assert len(projections.sites) == 1
    assert not projections.by_site


HEADS, SIZE = 4, 8


def _separate(*names):
    """Three linear layers, the rows of each head under each other; key heads are shared by neighbours."""

    def parts(layer):
        for name in names:
            weight = layer.get_submodule(name).weight
            heads = weight.reshape(-1, SIZE, weight.shape[-1]).mT
            yield heads.repeat_interleave(HEADS // len(heads), 0)

    return parts


def _gpt2(layer):
    for weight in layer.attn.c_attn.weight.chunk(3, 1):  # [width, head·size]
        yield weight.unflatten(1, (HEADS, SIZE)).transpose(0, 1)


def _neox(layer):
    weight = layer.attention.query_key_value.weight.unflatten(0, (HEADS, 3, SIZE))
    yield from weight.mT.unbind(1)


def _falcon(layer):
    """Several queries, and one key and value for all of them."""
    weight = layer.self_attention.query_key_value.weight.unflatten(0, (HEADS + 2, SIZE)).mT
    yield weight[:HEADS]
    yield from weight[HEADS:, None].expand(-1, HEADS, -1, -1)


LLAMA = _separate(*(f"self_attn.{name}_proj" for name in "qkv"))
BERT = _separate(*(f"attention.self.{name}" for name in ("query", "key", "value")))
DOCUMENTED = {
    "gpt2": ("h", _gpt2),
    "gpt-neox": ("layers", _neox),
    "falcon": ("h", _falcon),
    "llama": ("layers", LLAMA),
    "mistral": ("layers", LLAMA),
    "qwen2": ("layers", LLAMA),
    "phi": ("layers", LLAMA),
    "opt": ("decoder.layers", LLAMA),
    "bert": ("encoder.layer", BERT),
}


@pytest.mark.parametrize("name", DOCUMENTED)
def test_projections_equal_documented_weight_slices(name):
    model, given = random_family(name)
    circuits, _ = find(Circuits(), model, **given)
    path, parts = DOCUMENTED[name]
    layers = model.get_submodule(path)
    assert len(circuits.reads) == len(layers)
    for layer, reads in zip(layers, circuits.reads.values(), strict=True):
        for ours, theirs in zip((reads.query, reads.key, reads.value), parts(layer), strict=True):
            assert torch.equal(ours, theirs)


@pytest.mark.parametrize("name", ["own", "own-causal"])
def test_in_projection_weights_are_identified(name):
    model = load(name)
    circuits, _ = find(Circuits(), model.module, **model.prepare("The cat sat.").inputs)
    modules = [each for each in model.module.modules() if hasattr(each, "in_proj_weight")]
    for module, reads in zip(modules, circuits.reads.values(), strict=True):
        weights = module.in_proj_weight.chunk(3)
        for ours, weight in zip((reads.query, reads.key, reads.value), weights, strict=True):
            assert torch.equal(ours, weight.unflatten(0, (module.num_heads, -1)).mT)


def test_unidentified_projection_is_none():
    model = ALL["gemma2"].build("eager")  # its kernel shows weights, and neither queries nor keys
    circuits, _ = find(Circuits(), model, **inputs("text"))
    (reads, *_) = circuits.reads.values()
    assert (reads.query, reads.key) == (None, None)
    assert reads.value is not None


NORMED = {"bert", "albert", "deberta-v2", "roberta", "distilbert", "bart", "marian"}
AS_IT_IS = {"gpt2", "llama", "mistral", "qwen2", "gpt-oss", "t5", "vit", "bloom", "modernbert"}
AT_ONCE = {"falcon", "gpt-neox", "phi", "gptj", "codegen", "cohere"}  # with what feed-forward gives
TAKEN = {"gemma2", "glm4", "olmo2"}  # by a norm, before it is added
NOT_FOUND = {"granite"}  # multiplied before it is added


@pytest.mark.sweep(7)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", sorted(NORMED | AS_IT_IS | AT_ONCE | TAKEN | NOT_FOUND))
def test_residual_sum_is_located_with_its_norm(name, dtype):
    model, given = random_family(name)
    model.to(dtype)
    given = {key: each.to(dtype) if each.is_floating_point() else each for key, each in given.items()}
    residuals, _ = find(Residuals(), model, **given)
    found = [residuals.residual_at(site) for site in residuals.sites]
    if name in NOT_FOUND:
        assert found == [None] * len(found)
        return
    assert None not in found
    for each in found:
        assert (each.norm is not None) == (name in NORMED)
        assert (each.inner is not None) == (name in TAKEN)
        assert each.before.shape == each.result.shape


def of_another_sum(m, x):
    """A block adds something else than what its attention gives."""
    return m.after(x + m.mix(m.attention(x, x, x)[0]))


def test_unrelated_sum_is_not_the_residual_sum():
    torch.manual_seed(0)
    parts = {"mix": nn.Linear(16, 16), "after": nn.Linear(16, 16)}
    model = FunctionModule(
        of_another_sum, attention=nn.MultiheadAttention(16, 4, batch_first=True), **parts
    ).eval()
    nn.init.normal_(model.mix.weight, std=1e-3)  # so that the sum is nearly the residual alone
    residuals, _ = find(Residuals(), model, 100 * torch.randn(1, 5, 16))
    assert len(residuals.by_site) == 1
    assert not residuals.residuals
