"""Circuits: each number is that of plain hooks; planted ones are in test_cause.py."""

import pytest
import torch

from attnscope.errors import InputError, ModelError
from attnscope.models import load
from attnscope.questions import circuit
from attnscope.questions.circuit import TwoTexts, connected, find_circuit, of_circuit, prune
from attnscope.questions.patching import TextPair, read_pairs
from tests.questions.intervention.shapes import T5, Hooked, network, saved
from tests.questions.planted import Planted, wrap_planted

CLEAN, CORRUPT = "The cat sat on the mat", "The dog sat on the mat"


LIKE = pytest.mark.parametrize("shaped", ["gpt2", "llama", "bert", "t5"], indirect=True)


def pair_of(model, clean, corrupt, *words):
    return TextPair(model.prepare(clean), model.prepare(corrupt), *words)


def contrast(model, clean, corrupt):
    with torch.no_grad():
        return TwoTexts.read(model, TextPair(clean, corrupt))


@pytest.mark.parametrize("name", ["gpt2", "llama", "bert", "t5", "classifier"])
def test_all_edges_are_the_model_on_one_text_and_none_is_it_on_the_other(name, tmp_path):
    model = load(saved(tmp_path, name), predicting=True)
    made = contrast(model, model.prepare(CLEAN), model.prepare(CORRUPT))
    last = 1 + len(made.places)
    every = [(source, target) for target in range(1, last + 1) for source in range(target)]
    with torch.no_grad():
        assert made.restored(frozenset(every)) == pytest.approx(made.score(made.here), abs=1e-5)
        assert made.restored(frozenset()) == pytest.approx(made.score(made.there), abs=1e-5)


def test_heads_of_several_kinds_have_one_name_in_edges_lists_and_the_graph(tmp_path):
    one = {"num_heads": 2, "num_layers": 1, "num_decoder_layers": 1}
    model = load(saved(tmp_path, network("T5ForConditionalGeneration", **T5 | one)), predicting=True)
    answer = of_circuit(find_circuit(model, [pair_of(model, CLEAN, CORRUPT)], keep=0.5))
    graph = answer.pictures["circuit"]
    ends = {end for edge in graph.edges for end in (edge.source, edge.target)}
    assert ends == {node.name for node in graph.nodes}
    assert any(" " in end for end in ends)


class ByHand:
    """Passes with plain hooks: what heads give is read and replaced before the projection."""

    def __init__(self, shaped):
        self.hooked = Hooked(shaped)
        self.clean, self.projections, network = shaped.clean, shaped.projections, shaped.model.writer
        self.table = getattr(network, "encoder", network).get_input_embeddings()
        self.size = 8
        self.heads = network.config.num_attention_heads
        self.places = [(call, head) for call in range(len(self.projections)) for head in range(self.heads)]
        with torch.no_grad():
            self.embeds = [self.table(each.inputs["input_ids"]) for each in (shaped.clean, shaped.corrupt)]

    def run(self, embeds, given):
        """The score, and what every head gave, of which ``given`` replaces some, by call and head."""
        seen = {}

        def replace(call):
            def change(states):
                heads = states.clone().unflatten(-1, (self.heads, self.size))
                for head in range(self.heads):
                    seen[call, head] = heads[0, :, head].clone()
                    heads[0, :, head] = given.get((call, head), seen[call, head])
                return heads.flatten(-2)

            return change

        hooks = [(module, "input", replace(call)) for call, module in enumerate(self.projections)]
        texts = iter([embeds])  # the first that the table embeds; a decoder's text is the same in both
        hooks.append((self.table, "output", lambda made: next(texts, made)))
        return self.hooked.score(self.clean, hooks), seen


@LIKE
def test_an_edge_is_the_slope_along_it_times_what_its_source_differs(shaped, monkeypatch):
    monkeypatch.setattr(circuit, "STEPS", 1)  # half-way between the texts
    made = contrast(shaped.model, shaped.clean, shaped.corrupt)
    with torch.enable_grad():
        scores = made.attribute()
    hand = ByHand(shaped)
    assert made.places == hand.places
    clean, corrupt = (hand.run(embeds, {})[1] for embeds in hand.embeds)
    half = (hand.embeds[0] + hand.embeds[1]) / 2
    held = hand.run(half, {})[1]
    last = len(hand.places) + 1

    def moved(source, target, step):
        """The score where ``source`` differs a little on the way to ``target`` alone."""
        embeds, given = half, dict(held)
        if source == 0:
            embeds = half + step * (hand.embeds[0] - hand.embeds[1])
        else:
            place = hand.places[source - 1]
            given[place] = held[place] + step * (clean[place] - corrupt[place])
        score, seen = hand.run(embeds, given)
        if target == last:
            return score
        place = hand.places[target - 1]
        return hand.run(half, {place: seen[place]})[0]

    # from the embeddings, from one call to the next (an encoder's last to a decoder, too), to the prediction
    edges = {(0, 1), (0, 6), (0, last), (1, 5), (2, 8), (4, 7), (3, last), (last - 2, last)}
    across = {(8, target) for target in range(9, last, 4)} if len(hand.projections) > 2 else set()
    for source, target in edges | across:
        slope = (moved(source, target, 1e-4) - moved(source, target, -1e-4)) / 2e-4
        assert scores[source, target] == pytest.approx(slope, abs=1e-7, rel=1e-5)
    assert not across or any(scores[edge] for edge in across)
    assert not scores[1, 2]  # heads of one layer do not feed each other
    assert not scores[5, 1]


@LIKE
def test_a_circuit_is_run_head_by_head_with_what_its_edges_carry(shaped):
    made = contrast(shaped.model, shaped.clean, shaped.corrupt)
    hand = ByHand(shaped)
    other, last = hand.run(hand.embeds[1], {})[1], len(hand.places) + 1
    edges = frozenset({(0, 1), (0, 3), (1, 6), (3, 6), (0, 7), (6, last), (7, last), (3, last)})
    given = {}
    for target in [1, 3, 6, 7, last]:
        sources = {source for source, to in edges if to == target}
        held = other | {hand.places[source - 1]: given[source] for source in sources - {0}}
        score, seen = hand.run(hand.embeds[0 if 0 in sources else 1], held)
        if target < last:
            given[target] = seen[hand.places[target - 1]]
    with torch.no_grad():
        assert made.restored(edges) == pytest.approx(score, abs=1e-9)
        gone = {place: other[place] for place in (hand.places[node - 1] for node in (1, 6))}
        assert made.without([1, 6]) == pytest.approx(hand.run(hand.embeds[0], gone)[0], abs=1e-9)


def test_edges_that_lead_nowhere_are_no_part_of_a_circuit():
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
def test_of_several_ways_the_fewest_edges_that_keep_the_share_are_left(worth, keep, left):
    order = sorted(worth, key=lambda edge: -abs(worth[edge]))
    assert prune(order, 4, lambda edges: sum(map(worth.get, edges)), keep, lambda: 0) == left


@pytest.mark.parametrize("shaped", ["vit"], indirect=True)
def test_pictures_have_no_circuit_as_they_embed_no_tokens(shaped):
    with pytest.raises(ModelError, match="has no embedding of tokens: circuits are of texts"):
        find_circuit(shaped.model, [shaped.pair])


def test_texts_that_cannot_be_compared_are_refused(causal):
    for corrupt, sentence in (("The dog sat", "needs the same number"), (CLEAN, "give the same score")):
        with pytest.raises(InputError, match=sentence):
            find_circuit(causal, [pair_of(causal, CLEAN, corrupt)])


def test_pairs_are_lines_of_two_texts_with_the_words_of_their_own():
    pairs = read_pairs("a\tb\n\nc\td\te\nf\tg\th\ti\n", str.upper, "x", "y")
    assert [tuple(vars(each).values()) for each in pairs] == [
        ("A", "B", "x", "y"),
        ("C", "D", "e", "y"),
        ("F", "G", "h", "i"),
    ]
    for text, sentence in (("a b\n", "line 1"), ("a\tb\n\tc\n", "line 2"), ("\n", "no pair")):
        with pytest.raises(InputError, match=sentence):
            read_pairs(text, str)


def test_a_search_that_ends_early_says_so(monkeypatch):
    module = Planted(0)
    module.plant_copy((0, 1), at=2)
    model = wrap_planted(module)
    pairs = [pair_of(model, "ash bay cod dew", "ash bay elm dew", "cod")]
    monkeypatch.setattr(circuit, "PASSES", 1)
    assert any("stopped after" in note for note in find_circuit(model, pairs).notes)
    monkeypatch.undo()
    assert not any("stopped after" in note for note in find_circuit(model, pairs).notes)
