"""The terms of a head's score: their sum, single terms against removed parts, planted heads, and prompts."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
import transformers as hf

from attnscope.attention import Head
from attnscope.capture import summands
from attnscope.errors import ModelError, SelectionError
from attnscope.models import load
from attnscope.questions.find import parse_questions
from attnscope.questions.prompts import agreed_cells, align_prompts, mean_why, read_prompts
from attnscope.questions.score_terms import ScorePass
from attnscope.questions.why import explain_cells, explain_head, why_answer
from tests.questions.intervention.shapes import GROUPED, NETWORKS, network, saved
from tests.questions.planted import Planted, wrap_planted
from tests.questions.test_logits import CAUSAL, OTHERS

TEXT = "The cat sat on the mat"
LAST = Head(1, 3)
QUICK = {"gpt2", "llama", "qwen3", "gemma2", "falcon", "bart"}
EVERY = [
    name if name in QUICK else pytest.param(name, marks=pytest.mark.sweep) for name in (*CAUSAL, *OTHERS)
]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A model of a family by its name, made once and never changed."""
    every = CAUSAL | {name: network for name, (network, _) in OTHERS.items()}
    return cache(lambda name: load(saved(tmp_path_factory.mktemp(name), every[name])))


def ask(text):
    return parse_questions(text)[0]


def eager_rows(model, prepared, head):
    """A head's weights as the model itself returns them, without a kernel.  -> [query, key], float64"""
    net = type(model.module).from_pretrained(model.name, attn_implementation="eager").eval()
    with torch.no_grad():
        output = net(**prepared.inputs, output_attentions=True)
    names = {"decoder": ("attentions", "decoder_attentions"), "encoder": ("attentions",)}
    every = next(each for name in names[head.kind] if (each := getattr(output, name, None)) is not None)
    return every[head.layer][0, head.head].double().numpy()


@pytest.mark.sweep(2)
@pytest.mark.parametrize("name", EVERY)
def test_terms_sum_to_score_of_eager_attention(name, made):
    model = made(name)
    prepared = model.prepare(TEXT, "the mat sat") if name == "t5" else model.prepare(TEXT)
    kind = "encoder" if name in ("albert", "bert") else "decoder"
    (why,) = explain_head(model, prepared, ask("3 -> 1"), Head(1, 3, kind)).path
    row = eager_rows(model, prepared, why.head)[3]
    others = [key for key in range(len(row)) if key != 1 and row[key] > 0]
    assert why.weight == pytest.approx(row[1], abs=1e-6)
    assert why.score - why.normalizer == pytest.approx(np.log(row[1]), abs=1e-4)
    assert abs(why.remainder) <= 1e-4 * max(1, abs(why.product))
    total = sum(part.excess for part in why.by_query)
    assert sum(part.excess for part in why.by_key) == pytest.approx(total, abs=1e-9)
    if why.capped is None:  # then scores differ by as much as their logarithms
        over_others = np.log(row[1]) - np.log(row[others]).mean()
        assert total + why.bias_excess == pytest.approx(over_others, abs=1e-4)
    assert len(why.terms) == min(100, len(why.by_query) * len(why.by_key))


class HeldLayer:
    """The second layer's attention on its input less some parts, with norms as wide as in the pass.

    An independent answer: parts are what hooks see the model's own modules give, and the kernel's query and
    key are those that its attention function receives.
    """

    def __init__(self, net, ids):
        layers = net.h if hasattr(net, "h") else net.layers
        first, second = layers
        older = hasattr(first, "attn")
        projection = first.attn.c_proj if older else first.self_attn.o_proj
        self.attention = second.attn if older else second.self_attn
        norm, seen = (second.ln_1 if older else second.input_layernorm), {}
        hooks = [
            first.register_forward_pre_hook(lambda _, given: seen.update(embeddings=given[0])),
            projection.register_forward_pre_hook(lambda _, given: seen.update(heads=given[0])),
            first.mlp.register_forward_hook(lambda _, given, made: seen.update(mlp=made)),
            norm.register_forward_hook(lambda _, given, made: seen.update(states=given[0], normed=made)),
            self.attention.register_forward_pre_hook(self.keep, with_kwargs=True),
        ]
        hf.modeling_utils.ALL_ATTENTION_FUNCTIONS["spy"] = self.receive
        net.set_attn_implementation("spy")
        net(ids, use_cache=False)
        for hook in hooks:
            hook.remove()
        for name in ("q_norm", "k_norm"):
            if hasattr(self.attention, name):
                self.hold(getattr(self.attention, name))
        self.input, states = seen["normed"], seen["states"]
        weight = projection.weight if older else projection.weight.T  # [heads * size, width]
        size = len(weight) // 4
        self.parts = {"embeddings": seen["embeddings"], "feed-forward 0": seen["mlp"]}
        for head in range(4):
            rows = slice(head * size, head * size + size)
            self.parts[f"L0H{head}"] = seen["heads"][..., rows] @ weight[rows]
        if isinstance(norm, torch.nn.LayerNorm):
            spread = (states.var(-1, unbiased=False, keepdim=True) + norm.eps).sqrt()
            self.normed = lambda part: (part - part.mean(-1, keepdim=True)) / spread * norm.weight
        else:
            self.normed = lambda part: part * (self.input / states)

    def keep(self, _, given, named):
        self.given = given, named

    def receive(self, module, query, key, value, mask, scaling=None, **more):
        self.query, self.key = query, key.repeat_interleave(query.shape[1] // key.shape[1], 1)
        self.scale = scaling or query.shape[-1] ** -0.5
        output = torch.nn.functional.scaled_dot_product_attention(
            query, self.key, value.repeat_interleave(query.shape[1] // value.shape[1], 1), is_causal=True
        )
        return output.transpose(1, 2), None

    def hold(self, norm):
        """A norm of queries or keys has the scale of its first run ever after."""
        kept = []

        def scale(_, given, made):
            kept.append(made / given[0])
            return given[0] * kept[0]

        norm.register_forward_hook(scale)
        self.score(1, 0, [])

    def score(self, row, column, taken, head=1):
        """The score of a cell without some (token, part)."""
        given, named = self.given
        states = (given[0] if given else named["hidden_states"]).clone()
        for token, part in taken:
            states[0, token] -= self.normed(self.parts[part])[0, token]
        named = named if given else named | {"hidden_states": states}
        self.attention(*((states, *given[1:]) if given else ()), **named)
        return float(self.query[0, head, row] @ self.key[0, head, column] * self.scale)


@pytest.mark.parametrize("name", ["gpt2", "llama", pytest.param("qwen3", marks=pytest.mark.sweep)])
def test_term_is_what_score_loses_without_both_its_parts(name, tmp_path):
    model = load(saved(tmp_path, NETWORKS.get(name) or CAUSAL[name]))
    model.module.double()
    near = 1e-9 if name == "gpt2" else 1e-8  # the others' norms compute in float32
    prepared = model.prepare(TEXT)
    terms = ScorePass.run(model, prepared).explain(Head(1, 1), ask("5 -> 2"))
    with torch.no_grad():
        held = HeldLayer(model.module, prepared.inputs["input_ids"])
        score = held.score(5, 2, [])
        names = [part.name for part in terms.queries]
        embeddings = [at for at, name in enumerate(names) if name.startswith("embeddings")]
        for query in held.parts:
            a = embeddings if query == "embeddings" else [names.index(query)]
            without = held.score(5, 2, [(5, query)])
            assert score - without == pytest.approx(terms.values[a].sum(), abs=near)
            for key in ("embeddings", "L0H2"):
                b = embeddings if key == "embeddings" else [names.index(key)]
                lost = held.score(5, 2, [(2, key)]) - held.score(5, 2, [(5, query), (2, key)])
                assert score - without - lost == pytest.approx(terms.values[np.ix_(a, b)].sum(), abs=near)
    assert terms.means["product"] == pytest.approx(score, abs=1e-6)


WORDS = "cod elm fig hop jay elm"


def plant(seed):
    """An induction head behind a head that looks one token back, at places by the seed."""
    module, before, behind = Planted(seed), (0, seed % 3), (1, seed // 3 % 3)
    module.plant_induction(before, behind)
    return wrap_planted(module), Head(*before), Head(*behind)


@pytest.mark.sweep
@pytest.mark.parametrize("seed", range(20))
def test_planted_induction_head_is_explained_by_previous_token_head(seed):
    model, before, behind = plant(seed)
    prepared = model.prepare(WORDS)
    named, earlier = explain_head(model, prepared, ask("elm#2 -> fig"), behind, depth=2).path
    first, second = named.terms[:2]
    assert (first.query, first.key) == ("embeddings (token)", before.name)
    assert first.excess > 100 * abs(second.excess)
    assert named.weight > 0.99
    assert (earlier.head.name, earlier.query, earlier.key) == (before.name, "fig 2", "elm 1")
    assert earlier.link.side == "key"
    assert earlier.link.carried == pytest.approx(first.value, rel=0.01)
    assert earlier.terms[0].query == earlier.terms[0].key == "embeddings (position)"


def test_carried_values_of_all_cells_sum_to_the_part(made):
    ran = ScorePass.run(made("gpt2"), made("gpt2").prepare(TEXT))
    terms = ran.explain(LAST, ask("4 -> special"))
    call = ran.states.call(terms.site)
    for part, vectors in terms.key.vectors.items():
        if part.head is None:
            continue
        query = sum(terms.query.vectors.values())  # all of the query
        seed = torch.zeros_like(call.key)
        seed[0, 3] = (terms.cells.asked.T @ query).to(seed)
        carried = summands.carried_by(ran.states, call.key, seed, part.head)
        whole = float((query * vectors[: len(query)]).sum())
        assert sum(carried.values()) == pytest.approx(whole, abs=1e-5 * max(1, abs(whole)))


def test_cells_of_a_part_are_averaged(made):
    model = made("llama")
    prepared = model.prepare(TEXT)
    several = explain_head(model, prepared, ask("/cat|The/ -> -1"), LAST).path[0]
    ran = ScorePass.run(model, prepared)
    one = [ran.explain(LAST, ask(each)) for each in ("1 -> 0", "2 -> 1")]
    assert several.cells == 2
    assert several.score == pytest.approx(np.mean([each.means["score"] for each in one]), abs=1e-6)
    means = sum(each.values.sum(0) for each in one) / 2
    values = {part.name: value for part, value in zip(one[0].keys, means, strict=True)}
    assert {side.part: side.value for side in several.by_key} == pytest.approx(values, abs=1e-6)


def test_against_subtracts_terms_of_the_other_cells(made):
    model = made("gpt2")
    prepared, pair = model.prepare(TEXT), ("5 -> 2", "5 -> 3")
    contrast = explain_head(model, prepared, ask(pair[0]), LAST, ask(pair[1])).path[0]
    ran = ScorePass.run(model, prepared)
    here, there = (ran.explain(LAST, ask(each)) for each in pair)
    expected = {
        (here.queries[a].name, here.keys[b].name): here.values[a, b] - there.values[a, b]
        for a, b in np.ndindex(here.values.shape)
    }
    found = {(term.query, term.key): term.excess for term in contrast.terms}
    assert found == pytest.approx({each: expected[each] for each in found}, abs=1e-6)


def test_prompts_give_means_and_standard_errors(made):
    model, template = made("llama"), "The {A} sat on the {B}"
    prompts = read_prompts(template, "A,B\ncat,mat\ndog,bed\nman,box")
    texts = [model.prepare(each.text) for each in prompts]
    why = mean_why(model, prompts, texts, template, ask("on -> {A}"), LAST)
    each = [
        explain_head(model, text, ask(prompt.fill("on -> {A}")), LAST).path[0]
        for prompt, text in zip(prompts, texts, strict=True)
    ]
    (mean,) = why.path
    first = mean.terms[0]
    values = [
        next(term.excess for term in one.terms if (term.query, term.key) == (first.query, first.key))
        for one in each
    ]
    assert (why.prompts, mean.cells, mean.key) == (3, 3, "{A}")
    assert mean.weight == pytest.approx(np.mean([one.weight for one in each]))
    assert first.excess == pytest.approx(np.mean(values))
    assert first.error == pytest.approx(np.std(values, ddof=1) / 3**0.5)


PLANTED = "P,A,B\ncod,elm,fig\ncod gum,bay,ivy\ndew kit dew,gum,jay\nash,kit,ash"


def test_depth_follows_the_mean_over_prompts_to_planted_head():
    model, before, behind = plant(4)
    template, pair = "{P} {A} {B} hop hop {A}", "{A}#2 -> {B}"
    prompts = read_prompts(template, PLANTED)
    texts = [model.prepare(each.text) for each in prompts]
    why = mean_why(model, prompts, texts, template, ask(pair), behind, depth=2)
    alone = [
        explain_head(model, text, ask(prompt.fill(pair)), behind, depth=2).path[1]
        for prompt, text in zip(prompts, texts, strict=True)
    ]
    _, earlier = why.path
    assert (earlier.head.name, earlier.query, earlier.key) == (before.name, "{B}", "{A}")
    assert {(one.query, one.key) for one in alone} > {("fig 2", "elm 1"), ("jay 4", "gum 3")}
    assert earlier.weight == pytest.approx(np.mean([one.weight for one in alone]))
    carried = [one.link.carried for one in alone]
    assert earlier.link.carried == pytest.approx(np.mean(carried))
    assert earlier.link.error == pytest.approx(np.std(carried, ddof=1) / 2)
    assert (earlier.link.agree, earlier.cells) == (4, 4)
    assert earlier.link.term.endswith(f"{before.name} ({why.path[0].terms[0].value:+.2f})")
    first = earlier.terms[0]
    excess = [
        next(term.excess for term in one.terms if (term.query, term.key) == (first.query, first.key))
        for one in alone
    ]
    assert first.excess == pytest.approx(np.mean(excess))
    assert first.error == pytest.approx(np.std(excess, ddof=1) / 2)
    subtitle = why_answer(why).views[3].subtitle
    assert subtitle.endswith(
        f"{earlier.link.carried:+.2f} ± {earlier.link.error:.2f}, the most in 4 of 4 prompts"
    )


def test_depth_follows_the_term_that_is_strongest_on_average(made):
    model, template = made("llama"), "The {A} sat on the {B}"
    prompts = read_prompts(template, "A,B\ncat,mat\ndog,bed\nman,box")
    texts = [model.prepare(each.text) for each in prompts]
    why = mean_why(model, prompts, texts, template, ask("on -> {A}"), LAST, depth=2)
    by_head = [term for term in why.path[0].terms if "L0H" in term.query + term.key]
    alone = [
        explain_head(model, text, ask(prompt.fill("on -> {A}")), LAST).path[0].terms
        for prompt, text in zip(prompts, texts, strict=True)
    ]
    firsts = [next(term for term in terms if "L0H" in term.query + term.key) for terms in alone]
    assert {(term.query, term.key) for term in firsts} != {(by_head[0].query, by_head[0].key)}
    for each in why.path[1:]:
        assert each.link.term == f"{by_head[0].query} × {by_head[0].key} ({by_head[0].value:+.2f})"


def test_prompts_follow_the_key_that_carries_most_on_average():
    model, template = plant(4)[0], "{P} elm {B} elm"
    prompts = read_prompts(template, "P,B\nash,jay hop\ncod,fig\ncod gum,ivy")
    texts = [(prompt, model.prepare(prompt.text)) for prompt in prompts]
    axes = align_prompts(texts)

    def choose(row, *keys):
        """What is followed if these keys of a row, counted back from it, carry so much in each prompt."""
        carried = []
        for (_, text), of_text in zip(texts, keys, strict=True):
            at = len(text.tokens) - 1 + row
            carried.append({(at, key): of_text.get(key - at, 0.0) for key in range(len(text.tokens))})
        return agreed_cells(carried, axes)

    found = choose(0, {-3: -1.0, -2: 4.0}, {-2: -3.0}, {-2: 4.0, -1: 4.5})
    assert (found.key, found.agree, found.cells) == ("{B}", 2, [(4, 2), (3, 2), (4, 3)])
    found = choose(0, {-3: 4.0, -1: -3.0}, {-2: 3.0}, {-2: 5.0, -1: 4.0})
    assert (found.key, found.agree, found.cells) == ("elm", 3, [(4, 1), (3, 1), (4, 2)])
    assert (found.carried, found.error) == (pytest.approx(4), pytest.approx(1 / 3**0.5))
    found = choose(-1, {-1: 4.0, -2: 3.5}, {-1: 3.0}, {-1: 5.0})
    assert (found.key, found.agree, found.cells) == ("1 token before", 3, [(3, 2), (2, 1), (3, 2)])
    assert choose(0, {-1: 3.0}, {-1: 4.0}, {-1: 5.0}).key == "1 token before"  # of two tokens of {B}
    with pytest.raises(SelectionError, match="the keys of an earlier head are others"):
        agreed_cells([{(0, 0): 1.0}] * 3, axes)
    with pytest.raises(SelectionError, match="prompt 2 has other tokens between its slots: 'cod ELM fig'"):
        align_prompts([texts[0], (prompts[0]._replace(text="cod ELM fig"), model.prepare("cod ELM fig"))])


def test_soft_cap_is_a_step_between_product_and_score(tmp_path):
    network_ = network("Gemma2ForCausalLM", **GROUPED, head_dim=8, attn_logit_softcapping=0.1)
    model = load(saved(tmp_path, network_))
    (why,) = explain_head(model, model.prepare(TEXT), ask("5 -> 2"), LAST).path
    assert abs(why.product) > 0.02
    assert why.capped == pytest.approx(0.1 * np.tanh(why.product / 0.1), abs=1e-6)
    assert why.capped == pytest.approx(why.score, abs=1e-6)
    assert sum(part.value for part in why.by_key) == pytest.approx(why.product, abs=1e-5)


ALIBI = {
    "mpt": network("MptForCausalLM", vocab_size=8192, d_model=32, n_layers=2, n_heads=4, max_seq_len=64),
    "bloom": CAUSAL["bloom"],  # adds it within the product
}


@pytest.mark.parametrize("name", ALIBI)
def test_position_bias_is_a_term_of_its_own(name, tmp_path):
    model = load(saved(tmp_path, ALIBI[name]))
    (why,) = explain_head(model, model.prepare(TEXT), ask("5 -> 2"), Head(1, 0)).path
    slope = 2 ** (-8 / 4)  # of the first of four heads (Press et al. 2022)
    assert why.bias_excess == pytest.approx(-slope * (3 - np.mean([5, 4, 2, 1, 0])), abs=1e-5)
    assert why.score == pytest.approx(why.product + why.bias, abs=1e-5)


@pytest.mark.parametrize(("head", "cells"), [("cross L1H3", "1 -> 3"), ("encoder L1H3", "1 -> 3")])
def test_two_streams_meet_in_cross_attention(made, head, cells):
    model = made("bart")
    why = explain_head(model, model.prepare(TEXT, "the mat sat"), ask(cells), Head(head), depth=3)
    kinds = {part.part.split()[0] for part in why.path[0].by_query if part.kind == "head"}
    assert kinds == ({"encoder"} if head.startswith("encoder") else {"decoder", "cross"})
    assert {part.part.split()[0] for part in why.path[0].by_key if part.kind == "head"} == {"encoder"}
    graph = why_answer(why).picture
    column = {node.name: node.column for node in graph.nodes}
    assert all(column[edge.source] < column[edge.target] for edge in graph.edges)
    assert {each.place for each in why.path} <= {edge.source for edge in graph.edges} | {why.path[0].place}


def test_row_with_one_key_has_no_excess(made):
    why = explain_head(made("llama"), made("llama").prepare(TEXT), ask("0 -> 0"), LAST).path[0]
    assert why.weight == 1
    assert not any(term.excess for term in why.terms)


def test_path_ends_before_the_first_layer(made):
    model = made("llama")
    why = explain_head(model, model.prepare(TEXT), ask("5 -> 2"), LAST, depth=4)
    assert {each.head.layer for each in why.path} == {0, 1}
    assert "the path ends here" in why.notes[0]
    alone = explain_head(model, model.prepare(TEXT), ask("0 -> 0"), LAST, depth=2)
    assert len(alone.path) == 1
    assert "the path ends here" in alone.notes[0]


def test_masked_cell_and_absent_head_are_named(made):
    ran = ScorePass.run(made("llama"), made("llama").prepare(TEXT))
    with pytest.raises(SelectionError, match="those keys are masked"):
        ran.explain(LAST, ask("1 -> 3"))
    with pytest.raises(SelectionError, match="no head L7H0: this model has layers 0-1, heads 0-3"):
        ran.explain(Head(7, 0), ask("3 -> 1"))


def test_scores_of_two_products_are_refused(tmp_path):
    sizes = {"vocab_size": 8192, "d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 48}
    model = load(saved(tmp_path, network("XLNetLMHeadModel", **sizes)))
    with pytest.raises(ModelError, match="its queries and keys are not known"):
        explain_head(model, model.prepare(TEXT), ask("3 -> 1"), LAST)


def test_scores_scaled_in_other_shapes_have_no_bias(tmp_path):
    sizes = {"vocab_size": 8192, "d_model": 32, "num_layers": 2, "attention_heads": 4, "ffn_dim": 48}
    model = load(saved(tmp_path, network("XGLMForCausalLM", **sizes, max_position_embeddings=64)))
    (why,) = explain_head(model, model.prepare(TEXT), ask("5 -> 2"), LAST).path
    assert abs(why.product) > 0.01
    assert (why.bias, why.bias_excess) == pytest.approx((0, 0), abs=1e-6)


def test_lost_part_is_refused(made, monkeypatch):
    every = summands.values_and_slopes

    def some(stream, parts):
        yield from (each for each in every(stream, parts) if each[0][0].kind != "feed-forward")

    monkeypatch.setattr(summands, "values_and_slopes", some)
    with pytest.raises(ModelError, match=r"cannot be explained: their terms sum to .*, query times key is"):
        explain_head(made("gpt2"), made("gpt2").prepare(TEXT), ask("3 -> 1"), LAST)
    with pytest.raises(ModelError, match=r"cannot be explained: their terms sum to .*, query times key is"):
        next(explain_cells(made("gpt2"), made("gpt2").prepare(TEXT), [LAST]))


def test_every_cell_opens_its_own_terms():
    model, _, behind = plant(4)
    prepared = model.prepare(WORDS)
    ((head, tables),) = explain_cells(model, prepared, [behind])
    assert head == replace(behind, kind="decoder")
    assert set(tables) == {(row, key) for row in range(6) for key in range(row + 1)}
    for row, key in ((5, 2), (5, 3), (3, 0)):
        (why,) = explain_head(model, prepared, ask(f"{row} -> {key}"), behind).path
        terms = {(term.query, term.key): (term.value, term.excess) for term in why.terms}
        rows = {cells[:2]: tuple(map(float, cells[2:])) for cells in tables[row, key].rows}
        assert rows == {parts: pytest.approx(terms[parts], abs=0.0051) for parts in rows}
        assert next(iter(rows)) == (why.terms[0].query, why.terms[0].key)
        assert tables[row, key].title == f"{why.query} → {why.key}: {why.weight:.3f}"
    with pytest.raises(ModelError, match="of at most 40 tokens"):
        next(explain_cells(model, replace(prepared, tokens=prepared.tokens * 7), [behind]))


def test_graph_leads_from_parts_to_explained_heads():
    model, before, behind = plant(3)
    why = explain_head(model, model.prepare(WORDS), ask("elm#2 -> fig"), behind, depth=2)
    graph = why_answer(why).picture
    column = {node.name: node.column for node in graph.nodes}
    assert all(column[edge.source] < column[edge.target] for edge in graph.edges)
    strongest = max(graph.edges, key=lambda edge: edge.effect)
    ways = {(edge.source, edge.target, edge.way) for edge in graph.edges}
    assert (f"{before.name} · fig 2", f"{behind.name} · elm 5", "K") in ways
    assert strongest.effect == pytest.approx(why.path[0].by_key[0].excess, rel=0.01)


CONVOLVED = {
    "vit": ("ViT", {"image_size": 32, "patch_size": 8}, {"pixel_values": (1, 3, 32, 32)}),
    "wav2vec2": (
        "Wav2Vec2",
        {"conv_dim": (16, 16), "conv_kernel": (10, 3), "conv_stride": (5, 2), "num_conv_pos_embeddings": 8,
         "num_conv_pos_embedding_groups": 4},
        {"input_values": (1, 400)},
    ),
}  # fmt: skip


def convolved(name, folder):
    """An encoder that begins in convolutions, and its input."""
    family, more, given = CONVOLVED[name]
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    torch.manual_seed(0)
    net = getattr(hf, f"{family}Model")(getattr(hf, f"{family}Config")(**sizes, **more)).eval()
    for parameter in net.parameters():
        parameter.data.add_(torch.randn_like(parameter) / 10)
    net.save_pretrained(folder)
    model = load(folder)
    return model, model.prepare_tensors({each: torch.randn(*size) for each, size in given.items()})


@pytest.mark.parametrize("name", CONVOLVED)
def test_encoder_is_explained_back_to_its_convolutions(name, tmp_path):
    model, prepared = convolved(name, tmp_path)
    why = explain_head(model, prepared, ask("3 -> 5"), Head("encoder L1H1"), depth=2)
    first = why.path[0]
    row = eager_rows(model, prepared, first.head)[3]
    assert first.weight == pytest.approx(row[5], abs=1e-6)
    others = np.delete(row, 5)
    over_others = np.log(row[5]) - np.log(others).mean()
    assert sum(part.excess for part in first.by_key) == pytest.approx(over_others, abs=1e-4)
    assert {"embeddings", "head", "feed-forward", "biases"} <= {part.kind for part in first.by_key}
    assert {each.head.layer for each in why.path[1:]} == {0}


def test_part_of_a_patch_is_that_of_its_convolution(tmp_path):
    model, prepared = convolved("vit", tmp_path)
    (first,) = explain_head(model, prepared, ask("3 -> 5"), Head("encoder L0H1")).path
    parts, seen = dict(model.module.named_modules()), {}
    names = {
        end: next(name for name in parts if name.endswith(end))
        for end in ("patch_embeddings", "layernorm_before", "q_proj", "k_proj")
    }
    for end, name in names.items():
        parts[name].register_forward_hook(
            lambda _, given, made, end=end: seen.update({end: (given[0], made)})
        )
    with torch.no_grad():
        model.module(**prepared.inputs)
    norm, states, patch = (
        parts[names["layernorm_before"]],
        seen["layernorm_before"][0],
        seen["patch_embeddings"][1],
    )
    spread = (states[0, 5].var(unbiased=False) + norm.eps).sqrt()
    held = (patch[0, 4] - patch[0, 4].mean()) / spread * norm.weight  # the fifth patch is the sixth token
    query, weight = seen["q_proj"][1][0, 3, 8:16], parts[names["k_proj"]].weight[8:16]
    expected = float(query @ (weight @ held)) / 8**0.5
    found = sum(part.value for part in first.by_key if part.part.startswith("embeddings"))
    assert found == pytest.approx(expected, abs=1e-5)


def with_halves(rows):
    """Each row and half of the one before it."""
    return rows + torch.nn.functional.pad(rows, (0, 0, 1, 0))[..., :-1, :] / 2


class MixedQueries(torch.nn.Module):
    """A query projection whose inputs, or else results, get half of those of the token before."""

    def __init__(self, projection, before):
        super().__init__()
        self.projection, self.before = projection, before

    def forward(self, x):
        return self.projection(with_halves(x)) if self.before else with_halves(self.projection(x))


@pytest.mark.parametrize("before", [True, False])
def test_queries_of_several_tokens_have_the_parts_of_all(before):
    module = Planted(noise=0.5)
    attends = module.layers[1]
    attends.query = MixedQueries(attends.query, before)
    prepared = (model := wrap_planted(module)).prepare(WORDS)
    seen = []
    module.layers[0].output.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    terms = ScorePass.run(model, prepared).explain(Head(1, 1), ask("4 -> 2"))
    size = attends.size
    rows = slice(size, 2 * size)
    for head in range(3):
        columns = slice(head * size, head * size + size)
        written = seen[0][0][:, columns] @ module.layers[0].output.weight.T[columns]
        query = (written[4] + written[3] / 2) @ attends.query.projection.weight.T[:, rows]
        part = next(part for part in terms.queries if part.name == f"L0H{head}")
        assert terms.query.vectors[part][0].numpy() == pytest.approx(query.detach().numpy(), abs=1e-5)


def test_heads_of_a_layer_share_their_derivatives(tmp_path, monkeypatch):
    sizes = {"hidden_size": 64, "intermediate_size": 48, "num_key_value_heads": 2, "head_dim": 8}
    derive, calls, counts = torch.autograd.grad, [], []
    monkeypatch.setattr(torch.autograd, "grad", lambda *a, **k: calls.append(a) or derive(*a, **k))
    for heads in (4, 16):
        net = network("LlamaForCausalLM", **GROUPED | sizes | {"num_attention_heads": heads})
        model = load(saved(tmp_path / str(heads), net))
        calls.clear()
        explain_head(model, model.prepare(TEXT), ask("5 -> 2"), Head(1, 3))
        counts.append(len(calls))
    assert counts[0] == counts[1] > 0


@pytest.mark.parametrize(("cell", "against"), [("6 -> 2", None), ("2 -> 6", None), ("6 -> 2", "6 -> 4")])
def test_first_sentence_and_side_sums_are_those_of_the_terms(cell, against):
    model = load("own")
    prepared = model.prepare("The cat sat because it slept.")
    found = explain_head(model, prepared, ask(cell), Head("L2H5"), against and ask(against))
    (first,) = found.path
    answer = why_answer(found)
    heading, terms, sides = answer.views
    total = sum(part.excess for part in first.by_key)
    signed = {part.excess * np.sign(total): part for part in first.by_key}
    most, sentence = signed[max(signed)], heading.notes[0]
    assert f"{abs(total):.2f} {'above' if total > 0 else 'below'} that of" in sentence
    assert f"{first.key} ({most.excess:+.2f} with all parts of the query)" in sentence
    assert most.part in sentence
    for at in (0, 3):
        numbers = np.array([[float(cell) for cell in row[at + 1 : at + 3]] for row in sides.rows])
        assert numbers[:-1].sum(0) == pytest.approx(numbers[-1], abs=0.04)
        assert sides.rows[-1][at : at + 3] == (terms.rows[-1][0], *terms.rows[-1][2:])
        edges = [edge for edge in answer.pictures["why"].edges if edge.way == "QK"[at // 3]]
        drawn = [(edge.source.partition(" · ")[0], f"{edge.effect:+.2f}") for edge in edges]
        assert drawn == [(row[at], row[at + 2]) for row in sides.rows[:5]]
