"""Circuits: every value equals that of plain hooks; test_cause.py has planted ones."""

import pytest
import torch
from torch import nn

from attnscope.errors import InputError, ModelError
from attnscope.models import load
from attnscope.models.text.reader import wrap_module
from attnscope.questions.circuit import TwoTexts, circuit_answer, connected, find_circuit, prune
from attnscope.questions.patching import TextPair, read_pairs
from tests.questions.intervention.shapes import T5, Hooked, network, saved
from tests.questions.intervention.test_ablation import Small
from tests.questions.planted import Planted, wrap_planted

CLEAN, CORRUPT = "The cat sat on the mat", "The dog sat on the mat"


LIKE = pytest.mark.parametrize("shaped", ["gpt2", "llama", "bert", "t5"], indirect=True)


def pair_of(model, clean, corrupt, *words):
    return TextPair(model.prepare(clean), model.prepare(corrupt), *words)


def contrast(model, clean, corrupt):
    with torch.no_grad():
        return TwoTexts.read(model, TextPair(clean, corrupt))


@pytest.mark.parametrize("name", ["gpt2", "llama", "bert", "t5", "classifier"])
def test_all_edges_give_the_clean_score_and_none_the_corrupt(name, tmp_path):
    model = load(saved(tmp_path, name), predicting=True)
    made = contrast(model, model.prepare(CLEAN), model.prepare(CORRUPT))
    last = 1 + len(made.places)
    every = [(source, target) for target in range(1, last + 1) for source in range(target)]
    with torch.no_grad():
        assert made.restored(frozenset(every)) == pytest.approx(made.score(made.here), abs=1e-5)
        assert made.restored(frozenset()) == pytest.approx(made.score(made.there), abs=1e-5)


def test_head_names_agree_in_edges_and_graph(tmp_path):
    one = {"num_heads": 2, "num_layers": 1, "num_decoder_layers": 1}
    model = load(saved(tmp_path, network("T5ForConditionalGeneration", **T5 | one)), predicting=True)
    answer = circuit_answer(find_circuit(model, [pair_of(model, CLEAN, CORRUPT)], keep=0.5))
    graph = answer.pictures["circuit"]
    ends = {end for edge in graph.edges for end in (edge.source, edge.target)}
    assert ends == {node.name for node in graph.nodes}
    assert any(" " in end for end in ends)


class ByHand:
    """Passes with plain hooks: what heads give is read and replaced before the projection."""

    def __init__(self, shaped):
        self.hooked, self.text, self.projections = Hooked(shaped), shaped.clean, shaped.projections
        network = shaped.model.writer
        self.heads = network.config.num_attention_heads
        self.last = 1 + self.heads * len(self.projections)
        self.table = getattr(network, "encoder", network).get_input_embeddings()
        with torch.no_grad():
            embeds = [self.table(each.inputs["input_ids"]) for each in (shaped.clean, shaped.corrupt)]
        self.clean, self.corrupt = (self.run({0: each})[1] for each in embeds)

    def run(self, given):
        """The score, and what each node gave, of which ``given`` replaces some: embeddings, then heads."""
        seen = {0: given[0]}

        def replace(call):
            def change(states):
                heads = states.clone().unflatten(-1, (self.heads, 8))
                for head in range(self.heads):
                    node = 1 + call * self.heads + head
                    seen[node] = heads[0, :, head].clone()
                    heads[0, :, head] = given.get(node, seen[node])
                return heads.flatten(-2)

            return change

        hooks = [(module, "input", replace(call)) for call, module in enumerate(self.projections)]
        texts = iter([given[0]])  # the first that the table embeds; a decoder's text is the same in both
        hooks.append((self.table, "output", lambda made: next(texts, made)))
        return self.hooked.score(self.text, hooks), seen


@LIKE
def test_edge_score_is_gradient_times_source_difference(shaped, monkeypatch):
    monkeypatch.setattr("attnscope.questions.circuit.STEPS", 1)  # half-way between the texts
    monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)  # some T5s take their softmax in float32
    made, hand = contrast(shaped.model, shaped.clean, shaped.corrupt), ByHand(shaped)
    with torch.enable_grad():
        scores = made.attribute()[0]
    assert made.places == [divmod(node, hand.heads) for node in range(hand.last - 1)]
    half, last = (hand.clean[0] + hand.corrupt[0]) / 2, hand.last
    held = hand.run({0: half})[1]

    def moved(source, target, step):
        """The score where ``source`` differs a little on the way to ``target`` alone."""
        differs = hand.clean[source] - hand.corrupt[source]
        score, seen = hand.run(held | {source: held[source] + step * differs})
        return score if target == last else hand.run({0: half, target: seen[target]})[0]

    # from the embeddings, from one call to the next (an encoder's last to a decoder, too), to the prediction
    edges = {(0, 1), (0, 6), (0, last), (1, 5), (2, 8), (4, 7), (3, last), (last - 2, last)}
    across = {(8, target) for target in range(9, last, 4)} if len(hand.projections) > 2 else set()
    for source, target in edges | across:
        slope = (moved(source, target, 1e-4) - moved(source, target, -1e-4)) / 2e-4
        assert scores[source, target] == pytest.approx(slope, abs=1e-7, rel=1e-5)
    assert not across or any(scores[edge] for edge in across)
    assert not scores[1, 2]  # heads of one layer do not feed each other
    assert not scores[5, 1]


@pytest.mark.parametrize("shaped", ["llama"], indirect=True)
def test_edge_parts_are_gradients_through_query_key_and_value(shaped, monkeypatch):
    monkeypatch.setattr("attnscope.questions.circuit.STEPS", 1)
    made, hand = contrast(shaped.model, shaped.clean, shaped.corrupt), ByHand(shaped)
    edges = (0, 6), (1, 5), (2, 8), (4, 7)
    with torch.enable_grad():
        scores = made.attribute({target for _, target in edges})
    half = (hand.clean[0] + hand.corrupt[0]) / 2
    held, attends = hand.run({0: half})[1], shaped.model.writer.model.layers[1].self_attn

    def moved(projection, source, target, step):
        """The score where one projection alone of the target's layer reads a source that differs a little."""
        outputs = []
        hook = projection.register_forward_hook(lambda *given: outputs.append(given[2]))
        hand.run(held | {source: held[source] + step * (hand.clean[source] - hand.corrupt[source])})
        hook.remove()
        hook = projection.register_forward_hook(lambda *given: outputs[0])
        seen = hand.run(held)[1]
        hook.remove()
        return hand.run({0: half, target: seen[target]})[0]

    for source, target in edges:
        for part, projection in enumerate((attends.q_proj, attends.k_proj, attends.v_proj), 1):
            ends = (moved(projection, source, target, step) for step in (1e-4, -1e-4))
            slope = (next(ends) - next(ends)) / 2e-4
            assert scores[part, source, target] == pytest.approx(slope, abs=1e-7, rel=1e-5)
        assert scores[1:, source, target].sum() == pytest.approx(scores[0, source, target])
    assert not scores[1:, :, [1, 2, 3, 4, hand.last]].any()  # of no other target


def test_inseparable_edge_parts_are_blank_with_a_note(own):
    module = Small(lambda: nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), several=False).eval()
    model = wrap_module(module, own.reader.tokenizer, None, "small")  # torch projects inside of one function
    found = find_circuit(model, [pair_of(model, CLEAN, CORRUPT)], keep=0.5)
    inner = [each for each in found.edges if each.target != "prediction"]
    assert {(each.query, each.key, each.value, each.way) for each in inner} == {(None, None, None, None)}
    assert sum("no parts by q, k, v" in note for note in found.notes) == 1


@LIKE
def test_circuit_runs_each_head_on_its_edges_alone(shaped):
    made, hand = contrast(shaped.model, shaped.clean, shaped.corrupt), ByHand(shaped)
    edges = frozenset(
        {(0, 1), (0, 3), (1, 6), (3, 6), (0, 7), (6, hand.last), (7, hand.last), (3, hand.last)}
    )
    given = {0: hand.clean[0]}
    for target in [1, 3, 6, 7, hand.last]:
        sources = {source: given[source] for source, to in edges if to == target}
        score, seen = hand.run(hand.corrupt | sources)
        given |= {target: seen[target]} if target < hand.last else {}
    gone = {0: hand.clean[0]} | {node: hand.corrupt[node] for node in (1, 6)}
    with torch.no_grad():
        assert made.restored(edges) == pytest.approx(score, abs=1e-9)
        assert made.without([1, 6]) == pytest.approx(hand.run(gone)[0], abs=1e-9)


def test_circuit_drops_dead_end_edges():
    edges = [(0, 1), (1, 5), (0, 2), (3, 5), (1, 3), (4, 5)]
    assert connected(edges, 5) == {(0, 1), (1, 5), (3, 5), (1, 3)}


THREE_WAYS = {(0, 1): 0, (1, 4): 0.5, (0, 2): 0, (2, 4): 0.35, (0, 3): 0, (3, 4): 0.15}
TOO_MUCH = {(0, 1): 0, (1, 4): 2.5, (0, 2): 0, (2, 4): -1.5}


@pytest.mark.parametrize(
    ("worth", "keep", "left"),
    [
        (THREE_WAYS, 0.8, {(0, 1), (1, 4), (0, 2), (2, 4)}),
        (THREE_WAYS, 0.4, {(0, 1), (1, 4)}),
        (TOO_MUCH, 0.8, TOO_MUCH.keys()),  # what brings back too much is no circuit
    ],
)
def test_circuit_is_the_fewest_edges_with_the_kept_share(worth, keep, left):
    order = sorted(worth, key=lambda edge: -abs(worth[edge]))
    assert prune(order, 4, lambda edges: sum(map(worth.get, edges)), keep, lambda: 0) == left


@pytest.mark.parametrize("shaped", ["vit"], indirect=True)
def test_circuit_of_an_image_is_refused(shaped):
    with pytest.raises(ModelError, match="has no embedding of tokens: circuits are of texts"):
        find_circuit(shaped.model, [shaped.pair])


def test_circuit_of_incomparable_texts_is_refused(causal):
    for corrupt, sentence in (("The dog sat", "needs the same number"), (CLEAN, "give the same score")):
        with pytest.raises(InputError, match=sentence):
            find_circuit(causal, [pair_of(causal, CLEAN, corrupt)])


def test_pairs_file_has_two_texts_and_own_targets():
    pairs = read_pairs("a\tb\n\nc\td\te\nf\tg\th\ti\n", str.upper, "x", "y")
    assert [tuple(vars(each).values()) for each in pairs] == [
        ("A", "B", "x", "y"),
        ("C", "D", "e", "y"),
        ("F", "G", "h", "i"),
    ]
    for text, sentence in (("a b\n", "line 1"), ("a\tb\n\tc\n", "line 2"), ("\n", "no pair")):
        with pytest.raises(InputError, match=sentence):
            read_pairs(text, str)


def test_circuit_search_limit_is_noted(monkeypatch):
    module = Planted(0)
    module.plant_copy((0, 1), at=2)
    model = wrap_planted(module)
    pairs = [pair_of(model, "ash bay cod dew", "ash bay elm dew", "cod")]
    monkeypatch.setattr("attnscope.questions.circuit.MAX_PASSES", 1)
    assert any("stopped after" in note for note in find_circuit(model, pairs).notes)
    monkeypatch.undo()
    assert not any("stopped after" in note for note in find_circuit(model, pairs).notes)
