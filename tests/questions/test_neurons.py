"""The score of one pair by dimension, against queries, keys and rotations written out in plain torch."""

import math

import pytest
import torch
import transformers as hf

from attnscope.attention import Head
from attnscope.errors import ModelError
from attnscope.models import load
from attnscope.questions.head import one_head
from attnscope.questions.neurons import of_neurons, take_apart
from attnscope.questions.selection import Selection
from tests.questions.intervention.shapes import GROUPED, saved
from tests.questions.test_writes import TEXT

LAYER, HEAD, HEADS = 1, 2, 4


def chosen(head: str = f"L{LAYER}H{HEAD}") -> Selection:
    return Selection(head=Head(head))


def caught(module, call, *parts):
    """What some parts of a module return in one pass, by plain hooks."""
    made = {}
    hooks = [
        part.register_forward_hook(lambda part, _, output: made.setdefault(part, output)) for part in parts
    ]
    with torch.no_grad():
        call()
    for hook in hooks:
        hook.remove()
    return [made[part] for part in parts]


def turned(states, base=10000.0):
    """RoFormer's rotation by complex numbers, the first half of a head against the second.  [token, size]"""
    tokens, half = states.shape[0], states.shape[1] // 2
    angle = torch.arange(tokens).double()[:, None] * base ** (-torch.arange(half).double() / half)
    pairs = torch.complex(*states.double().split(half, -1)) * torch.polar(torch.ones_like(angle), angle)
    return torch.cat([pairs.real, pairs.imag], -1)


def gpt2(model, prepared):
    block = model.module.h[LAYER] if hasattr(model.module, "h") else model.module.transformer.h[LAYER]
    [packed] = caught(model.module, lambda: model.module(**prepared.inputs), block.attn.c_attn)
    query, key, _ = packed[0].double().unflatten(-1, (3, HEADS, -1)).permute(1, 2, 0, 3)
    return query[HEAD], key[HEAD]


def llama(model, prepared):
    attention = getattr(model.module, "model", model.module).layers[LAYER].self_attn
    states = caught(model.module, lambda: model.module(**prepared.inputs), attention.q_proj, attention.k_proj)
    query, key = (part[0].unflatten(-1, (-1, 8)).transpose(0, 1) for part in states)
    return turned(query[HEAD]), turned(key[HEAD // 2])  # two heads share a key


def own(model, prepared):
    attention = model.module.layers[LAYER].self_attn
    given = []
    hook = attention.register_forward_pre_hook(lambda _, args: given.append(args[0]))
    with torch.no_grad():
        model.module(**prepared.inputs)
    hook.remove()
    weight, bias = (part.double().chunk(3) for part in (attention.in_proj_weight, attention.in_proj_bias))
    heads = [
        (given[0][0].double() @ weight[at].T + bias[at]).unflatten(-1, (attention.num_heads, -1))[:, HEAD]
        for at in (0, 1)
    ]
    return tuple(map(turned, heads))


MODELS = {
    "gpt2": (gpt2, True),
    "llama": (llama, True),
    "own": (own, False),
    "own-causal": (own, True),
}


@pytest.fixture(params=MODELS)
def given(request, tmp_path):
    """A model, its input, and the queries, keys and causality of a head by hand."""
    (by_hand, causal), name = MODELS[request.param], request.param
    model = load(name if name.startswith("own") else saved(tmp_path, name))
    prepared = model.prepare(TEXT)
    with torch.no_grad():
        return model, prepared, *by_hand(model, prepared), causal


@pytest.mark.parametrize("pair", [(3, 1), (4, 4), (4, 2)])
def test_products_sum_to_the_score_and_the_softmax_of_the_row_is_the_shown_weight(given, pair) -> None:
    model, prepared, query, key, causal = given
    at, to = pair
    seen = take_apart(model, prepared, chosen(), f"{at} -> {to}")
    products = query[at] * key[to] / math.sqrt(query.shape[-1])
    assert [each.product for each in seen.dimensions] == pytest.approx(products.tolist(), abs=1e-5)
    assert [each.query for each in seen.dimensions] == pytest.approx(query[at].tolist(), abs=1e-5)
    assert seen.score == pytest.approx(sum(each.product for each in seen.dimensions), abs=1e-12)
    assert seen.score == pytest.approx(float(products.sum()), abs=1e-5)
    row = key @ query[at] / math.sqrt(query.shape[-1])
    known = row[: at + 1] if causal else row
    assert [score for score in seen.scores if score is not None] == pytest.approx(known.tolist(), abs=1e-5)
    assert [score is None for score in seen.scores] == [causal and place > at for place in range(len(row))]
    shown = one_head(model, prepared, chosen()).weights[at][to]
    assert seen.weight == pytest.approx(shown, abs=1e-6)
    assert float(known.softmax(-1)[to]) == pytest.approx(shown, abs=1e-6)


EXTRAS = {
    "gemma2": lambda: hf.Gemma2ForCausalLM(
        hf.Gemma2Config(**GROUPED, head_dim=8, attn_logit_softcapping=0.05, query_pre_attn_scalar=2)
    ),
    "gpt-oss": lambda: hf.GptOssForCausalLM(
        hf.GptOssConfig(**GROUPED, head_dim=8, num_local_experts=4, num_experts_per_tok=2)
    ),
    "t5": lambda: "t5",
}


@pytest.mark.parametrize("name", EXTRAS)
def test_caps_biases_and_sinks_have_their_part_in_the_weight(name, tmp_path) -> None:
    torch.manual_seed(1)
    model = load(saved(tmp_path, EXTRAS[name]()))
    prepared = model.prepare(TEXT)
    seen = take_apart(model, prepared, chosen(), "sat -> cat")
    total = sum(each.product for each in seen.dimensions)
    assert {"gemma2": seen.softcap, "gpt-oss": seen.sink, "t5": seen.bias}[name]
    assert seen.score == pytest.approx(total + seen.softcap + seen.bias, abs=1e-9)
    if name == "gemma2":
        assert seen.score == pytest.approx(0.05 * math.tanh(total / 0.05), abs=1e-9)
    assert seen.scores[seen.key_number] == pytest.approx(seen.score, abs=1e-5)
    terms = [score for score in seen.scores if score is not None] + ([] if seen.sink is None else [seen.sink])
    weight = math.exp(seen.score) / sum(map(math.exp, terms))
    row = int(seen.query.split()[-1])
    shown = one_head(model, prepared, chosen()).weights[row][seen.key_number]
    assert (seen.weight, weight) == (pytest.approx(shown, abs=1e-6), pytest.approx(shown, abs=1e-6))


def test_the_picture_lists_the_largest_products_and_maps_them_all() -> None:
    model = load("own-causal")
    result = take_apart(model, model.prepare(TEXT), chosen("L2H1"), "sat -> cat")
    terms, map_ = of_neurons(result).views
    products = [each.product for each in result.dimensions]
    assert sum(term.value for term in terms.groups) == pytest.approx(result.score, abs=1e-3)
    for block in terms.blocks[1:]:
        assert sum(term.value for term in block) == pytest.approx(sum(products), abs=1e-9)
    assert map_.values.ravel().tolist() == products
    assert [*map_.rows, *map_.columns] == ["0", "8", "16", "24", *(f"+{at}" for at in range(8))]


def test_a_head_whose_queries_nobody_saw_is_not_taken_apart(tmp_path) -> None:
    bloom = hf.BloomForCausalLM(hf.BloomConfig(vocab_size=8192, hidden_size=32, n_layer=2, n_head=4))
    model = load(saved(tmp_path, bloom))
    with pytest.raises(ModelError, match=r"the queries and keys of L1H2 \(softmax\) are unknown"):
        take_apart(model, model.prepare(TEXT), chosen(), "sat -> cat")


def test_a_token_that_stands_twice_is_told() -> None:
    model = load("own-causal")
    seen = take_apart(model, model.prepare("The cat saw the cat."), chosen(), "saw -> cat")
    assert any(note.startswith("token 2 is shown; cat stands at 5 too") for note in seen.notes)
