"""Patched heads against plain PyTorch: hooks on layers and projections, and written-out attention."""

import gc

import numpy as np
import pytest
import torch
from torch import nn

from attnscope.attention import Head
from attnscope.errors import InputError, ModelError, SelectionError
from attnscope.models import load
from attnscope.models.inputs import Limit
from attnscope.models.targets import score_prediction
from attnscope.questions.cause import cut
from attnscope.questions.circuit import find_circuit
from attnscope.questions.cost import EmptyPass
from attnscope.questions.find import parse_questions
from attnscope.questions.patching import Receiver, TextPair, patch, trace_tokens
from attnscope.questions.selection import Selection
from attnscope.questions.stats import measure_heads
from tests.models.folders import gpt2
from tests.questions.intervention.shapes import SHAPES, TEXT, Attends, Hooked, close, heads_are, put
from tests.questions.planted import Planted, wrap_planted

NOISE = pytest.mark.parametrize("noise", [False, True])
WHAT = {"q": (0,), "k": (1,), "v": (2,), "pattern": (0, 1)}


@pytest.mark.sweep(3)
@NOISE
def test_patched_output_equals_exchanged_columns(shaped, noise):
    result = patch(shaped.model, [shaped.pair], noise=noise)
    hooked, heads = Hooked(shaped), max(each.head.head for each in result.heads) + 1
    donor, base, there, here = hooked.sides(noise)
    by_hand = hooked.exchanged(base, hooked.seen(donor, shaped.projections, "input"), heads)
    heads_are(shaped, result, by_hand, here, there - here)


@pytest.mark.sweep(7)
@pytest.mark.parametrize(("what", "noise"), [("q", False), ("k", True), ("v", False), ("pattern", True)])
def test_patched_part_equals_written_out_attention(shaped, what, noise, monkeypatch):
    """Queries, keys and values as the kernel gets them: those of shared keys are exchanged for one head."""
    result = patch(shaped.model, [shaped.pair], what=what, noise=noise)
    hooked, theirs = Hooked(shaped), []
    donor, base, there, here = hooked.sides(noise)
    with monkeypatch.context() as patched:
        Attends(patched, parts=lambda number, *parts: theirs.append(parts) or parts)
        assert hooked.score(donor) == pytest.approx(there)

    def by_hand(meant):
        def parts(number, *mine):
            mine = [part.clone() for part in mine]
            for head in (head for call, head in meant if call == number):
                for place in WHAT[what]:
                    mine[place][:, head] = theirs[number][place][:, head]
            return mine

        with monkeypatch.context() as patched:
            Attends(patched, parts=parts)
            return hooked.score(base)

    heads_are(shaped, result, by_hand, here, there - here)


@pytest.mark.sweep(3)
@pytest.mark.parametrize("shaped", ["llama"], indirect=True)
@pytest.mark.parametrize("what", WHAT)
def test_patched_part_is_the_same_in_eager_and_sdpa(shaped, what):
    scores = []
    for written in ("eager", "sdpa"):
        shaped.model.writer.set_attn_implementation(written)
        result = patch(shaped.model, [shaped.pair], what=what)
        scores.append({each.head: each.score for each in result.heads})
    close(*scores)


@pytest.mark.parametrize("shaped", ["llama"], indirect=True)
def test_patched_pattern_includes_the_donor_bias(shaped, monkeypatch):
    def bias(module, args, given):
        states = given["hidden_states"]
        closed = states.new_full((states.shape[1],) * 2, -torch.inf).triu(1)
        return args, given | {"attention_mask": (states @ states.mT / 4 + closed)[:, None]}

    layers, theirs = [layer.self_attn for layer in shaped.stacks[0]], {}
    hooks = [layer.register_forward_pre_hook(bias, with_kwargs=True) for layer in layers]
    result = patch(shaped.model, [shaped.pair], what="pattern")
    hooked = Hooked(shaped)

    def score(prepared, weigh):
        with monkeypatch.context() as patched:
            Attends(patched, weigh=weigh)
            return hooked.score(prepared)

    there, here = score(shaped.clean, theirs.setdefault), hooked.score(shaped.corrupt)

    def by_hand(meant):
        def put_rows(number, weights):
            weights = weights.clone()
            for head in (head for call, head in meant if call == number):
                weights[:, head] = theirs[number][:, head]
            return weights

        return score(shaped.corrupt, put_rows)

    heads_are(shaped, result, by_hand, here, there - here)
    for hook in hooks:
        hook.remove()


@pytest.mark.sweep(3)
@NOISE
def test_traced_token_equals_exchanged_row(shaped, noise):
    result = trace_tokens(shaped.model, shaped.pair, noise=noise)
    hooked = Hooked(shaped)
    donor, base, there, here = hooked.sides(noise)
    layers = [layer for stack in shaped.stacks for layer in stack]
    theirs = hooked.seen(donor, layers, "output")
    found = {(each.kind, each.layer, each.position): each for each in result.tokens}
    assert len(found) == len(result.tokens) == sum(states.shape[1] for states in theirs)
    kinds = list(dict.fromkeys(kind for kind, _, _ in found))
    assert len(kinds) == len(shaped.stacks)
    for (kind, layer, position), each in found.items():
        at = kinds.index(kind) * len(shaped.stacks[0]) + layer

        def change(given, states=theirs[at], position=position):
            given = given.clone()
            given[:, position] = states[:, position]
            return given

        after = hooked.score(base, [(layers[at], "output", change)])
        close((each.score, each.effect), (after, (after - here) / (there - here)))


PATHS = [(shape, None) for shape in SHAPES] + [("llama", "q"), *(("bert", part) for part in "qkv")]


@pytest.mark.sweep(2)
@pytest.mark.parametrize(("shaped", "part"), PATHS, indirect=["shaped"])
def test_path_patching_holds_all_other_heads_fixed(shaped, part):
    last = len(shaped.stacks[-1]) - 1
    to = Receiver.parse("logits" if part is None else f"L{last}H1:{part}")
    result = patch(shaped.model, [shaped.pair], to=to)
    hooked, heads = Hooked(shaped), max(each.head.head for each in result.heads) + 1
    donor, base, there, here = hooked.sides(False)
    theirs, mine = (hooked.seen(each, shaped.projections, "input") for each in (donor, base))

    def by_hand(senders):
        held = []
        for call, module in enumerate(shaped.projections):
            given = mine[call].clone()
            for head in (head for at, head in senders if at == call):
                given = put(theirs[call], head, given.shape[-1] // heads)(given)
            held.append((module, "input", lambda _, given=given: given))
        if part is None:
            return hooked.score(base, held)
        layer, long = shaped.stacks[0][last], {"q": "query", "k": "key", "v": "value"}[part]
        named = dict(layer.named_modules())
        module = named.get(f"self_attn.{part}_proj") or named[f"attention.self.{long}"]
        [kept] = hooked.seen(base, [module], "output", held)
        return hooked.score(base, [(module, "output", put(kept, 1, kept.shape[-1] // heads))])

    heads_are(shaped, result, by_hand, here, there - here, None if part is None else last)


def test_effect_over_pairs_is_ratio_of_sums_with_error(causal):
    lines = [
        ("The cat sat on the", "The dog sat on the", "mat"),
        ("The man is on the", "The cat is on the", "floor"),
        ("The dog saw the", "The man saw the", "mat"),
    ]
    pairs = [TextPair(causal.prepare(one), causal.prepare(two), target, "door") for one, two, target in lines]
    result = patch(causal, pairs, fast=True, exact=True)
    alone = [patch(causal, [pair], fast=True, exact=True) for pair in pairs]
    wholes = np.array([each.reference - each.score for each in alone])
    assert result.score == pytest.approx(np.mean([each.score for each in alone]))
    for each in result.heads:
        own = [next(one for one in single.heads if one.head == each.head) for single in alone]
        moved, guessed = np.array([(one.effect, one.estimate) for one in own]).T * wholes
        close(each.effect, moved.sum() / wholes.sum())
        close(each.estimate, guessed.sum() / wholes.sum())
        rest = moved - each.effect * wholes
        close(each.error, rest.std(ddof=1) / 3**0.5 / abs(wholes.mean()))


ASKED = {
    "cut": lambda model, pair, heads: cut(model, pair.clean, parse_questions("it -> cat"), heads=heads),
    "patch": lambda model, pair, heads: patch(model, [pair], heads=heads),
    "patch keys": lambda model, pair, heads: patch(model, [pair], heads=heads, what="k"),
    "estimate": lambda model, pair, heads: patch(model, [pair], heads=heads, fast=True),
    "loss": lambda model, pair, heads: measure_heads(
        model, pair.clean, Selection(number=0 if heads else None), ablation=True
    ),
}


@pytest.fixture(scope="module")
def long(tmp_path_factory):
    """A model, and two texts of 128 tokens."""
    model = load(gpt2(tmp_path_factory.mktemp("long"), n_layer=3, n_positions=128), predicting=True)
    texts = (f"{TEXT} {'The man saw it. ' * 40}", f"{TEXT.replace('cat', 'mat')} {'The man saw it. ' * 40}")
    pair = TextPair(*(model.prepare(text, limit=Limit(128, truncate=True)) for text in texts))
    assert len(pair.clean.tokens) == 128
    return model, pair


@pytest.mark.sweep(3)
@pytest.mark.parametrize("asked", ASKED)
def test_patch_of_n_heads_costs_about_n_passes(asked, long):
    """Layers that are run, in passes of all layers, of a model that was asked how it mixes tokens."""
    model, pair = long
    model.run(pair.clean, [])
    layers, ran = model.writer.transformer.h, []
    hooks = [layer.attn.register_forward_hook(lambda *_: ran.append(1)) for layer in layers]
    heads = len(ASKED[asked](model, pair, ()).heads)
    for hook in hooks:
        hook.remove()
    assert heads == 12
    assert all("forward" not in vars(layer) for layer in layers)
    assert 1 <= len(ran) / len(layers) <= (4 if asked == "estimate" else 1.15 * heads)


@pytest.mark.sweep
@pytest.mark.parametrize("asked", ASKED)
def test_memory_does_not_grow_with_the_number_of_heads(asked, long):
    most = []
    for heads in ([Head("L0H0"), Head("L2H0")], ()):
        gc.collect()
        with EmptyPass(long[0].writer) as memory:
            ASKED[asked](*long, heads)
        most.append(memory.most)
    assert most[1] <= 1.02 * most[0]


class Adds(nn.Sequential):
    """A layer that returns what it adds to the stream."""


def test_layer_without_full_stream_is_not_traced():
    module = Planted(0)
    module.plant_induction((0, 0), (1, 0))
    model = wrap_planted(module)
    pair = TextPair(model.prepare("ash bay cod ash"), model.prepare("ash bay cod bay"))
    with pytest.raises(ModelError, match="has no list of layers"):
        trace_tokens(model, pair)
    module.layers = nn.ModuleList(map(Adds, module.layers))
    with pytest.raises(ModelError, match="read more than what a layer returns"):
        trace_tokens(model, pair)


@pytest.mark.sweep(3)
def test_fast_patch_is_slope_of_exact_patch(model, monkeypatch):
    clean, corrupt = model.prepare(TEXT), model.prepare(TEXT.replace("cat", "mat"))
    pair, at, kept = TextPair(clean, corrupt), score_prediction(model, clean, None), {}
    exact, fast, both = (
        patch(model, [pair], **how) for how in ({}, {"fast": True}, {"fast": True, "exact": True})
    )
    assert fast.estimated
    assert not both.estimated
    assert fast.together is None
    effects, estimates = ({each.head: each.effect for each in result.heads} for result in (exact, fast))
    assert {each.head: each.effect for each in both.heads} == pytest.approx(effects)
    assert {each.head: each.estimate for each in both.heads} == pytest.approx(estimates)
    pairs = np.array([(effects[head], estimates[head]) for head in effects])
    assert both.correlation == pytest.approx(np.corrcoef(pairs.T)[0, 1], abs=1e-5)
    assert exact.correlation is None

    def score(prepared, give):
        with monkeypatch.context() as patched, torch.no_grad():
            Attends(patched, give=give)
            logits = model.logits(prepared, torch.tensor([0]), torch.tensor([at.at]))[0].double()
            return logits.log_softmax(-1)[at.chosen]

    there, here = score(clean, kept.setdefault), score(corrupt, None)
    for head in list(estimates)[:3]:

        def moved(step, head=head):
            def give(number, output):
                output = output.clone()
                if number == head.layer:
                    mine, theirs = output[:, head.head], kept[number][:, head.head]
                    output[:, head.head] = mine + step * (theirs - mine)
                return output

            return score(corrupt, give)

        slope = (moved(1e-4) - moved(-1e-4)) / 2e-4
        assert estimates[head] == pytest.approx(float(slope / (there - here)), rel=1e-4, abs=1e-6)


@pytest.mark.parametrize(
    "ask", [lambda pairs, model: patch(model, pairs), lambda pairs, model: find_circuit(model, pairs)]
)
@pytest.mark.parametrize(
    ("other", "target", "sentence"),
    [
        ("The elephantine sat on the", None, "'cat' has 1 piece and 'elephantine' 4 pieces"),
        ("The dog sat on the", "xylophone", "'xylophone' in the vocabulary: it is 6 tokens .*name one token"),
    ],
)
def test_pair_with_a_word_of_several_tokens_is_refused(ask, other, target, sentence, causal):
    pair = TextPair(causal.prepare("The cat sat on the"), causal.prepare(other), target)
    fine = TextPair(pair.clean, causal.prepare("The dog sat on the"))
    with pytest.raises((InputError, SelectionError), match=f"^pair 2: .*{sentence}"):
        ask([fine, pair], causal)
