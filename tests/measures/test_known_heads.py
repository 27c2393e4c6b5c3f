"""Known heads: those written by hand, number by number, and facts about those of a trained encoder."""

import json
import random

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from attnscope.measures import Measurement, worth_a_look
from attnscope.models import load
from attnscope.network import Encoder, EncoderConfig, save_encoder
from attnscope.questions.selection import Selection
from attnscope.questions.stats import measure_heads
from tests.models.folders import eager_minilm, minilm

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = ["ash", "bay", "cod", "dew", "elm", "fig", "gum", "hop", "ivy", "jay", "kit"]
IDS = len(SPECIAL) + len(WORDS)  # each token is one axis of the residual stream, its predecessor another
SIZE, BASE = 64, 1e9
SHARP = 60.0


def rotations():
    """The angle by which each pair of a head's numbers turns from one position to the next."""
    return BASE ** (-torch.arange(0, SIZE, 2, dtype=torch.float64) / SIZE)


def look_back(attention, head, steps):
    """Queries and keys that are the same for every token, and agree best ``steps`` positions apart."""
    angle = rotations().float() * steps
    query = torch.cat([angle.cos(), -angle.sin()]) * SHARP
    key = torch.cat([torch.ones(SIZE // 2), torch.zeros(SIZE // 2)]) * SHARP
    width = attention.embed_dim
    attention.in_proj_bias[head * SIZE : (head + 1) * SIZE] = query
    attention.in_proj_bias[width + head * SIZE : width + (head + 1) * SIZE] = key


def still(head):
    """Numbers of a head that rotation leaves as good as alone: its slowest pairs, the first of each."""
    return slice(head * SIZE + SIZE // 2 - IDS, head * SIZE + SIZE // 2)


@pytest.fixture(scope="module")
def encoder():
    config = EncoderConfig(
        IDS, width=2 * SIZE, layers=2, heads=2, hidden=4, max_positions=128, rotary_base=BASE, segments=0,
        causal=True, trained=True,
    )  # fmt: skip
    encoder = Encoder(config)
    width, identity = config.width, torch.eye(IDS)
    with torch.no_grad():
        for name, weights in encoder.named_parameters():
            if "norm" not in name:
                weights.zero_()
        encoder.embedding.weight[:, :IDS] = identity
        first, second = (layer.self_attn for layer in encoder.layers)
        look_back(first, 0, 1)
        first.in_proj_weight[2 * width : 2 * width + IDS, :IDS] = identity  # values: who the token is
        first.out_proj.weight[IDS : 2 * IDS, :IDS] = identity  # kept beside who the reader itself is
        here = still(1)
        first.in_proj_bias[here.start] = SHARP
        first.in_proj_weight[width + here.start, SPECIAL.index("[CLS]")] = SHARP
        here = still(0)
        second.in_proj_weight[here, :IDS] = identity * SHARP  # queries: who I am
        second.in_proj_weight[width + here.start : width + here.stop, IDS : 2 * IDS] = identity * SHARP
        look_back(second, 1, 0)
    return encoder.eval()


@pytest.fixture(scope="module")
def folder(encoder, tmp_path_factory):
    vocabulary = {word: number for number, word in enumerate([*SPECIAL, *WORDS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens(SPECIAL)
    tokenizer.post_processor = processors.TemplateProcessing("[CLS] $A", None, [("[CLS]", 2)])
    path = tmp_path_factory.mktemp("known") / "heads"
    save_encoder(path, encoder, tokenizer)
    return str(path)


def test_every_hand_written_head_is_named(folder):
    model, words = load(folder), random.Random(0).sample(WORDS, len(WORDS))
    prepared = model.prepare(" ".join(words * 3))
    seen = {head.name: head for head in measure_heads(model, prepared, Selection()).heads}
    roles = {"L0H0": "previous", "L0H1": "first", "L1H0": "induction", "L1H1": "self"}
    assert {name: head.role.name for name, head in seen.items()} == roles
    for head in seen.values():
        assert head.role.score == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("seed", range(3))
def test_random_tokens_twice_show_induction_on_the_second_half(folder, seed, run):
    half = len(WORDS)
    asked = ("--repeat-random", half, "--seed", seed, "-m", folder)
    ran = run("stats", *asked, "--json")
    answer = json.loads(ran.out)
    assert any("induction is measured on the second half" in note for note in answer["notes"])
    for head in answer["heads"]:
        address = f"L{head['layer']}H{head['head']}"
        weights = json.loads(run("show", *asked, "--head", address, "--json").out)["weights"]
        rows = range(1 + half, 1 + 2 * half)  # behind [CLS] and the first half
        looked = sum(weights[row][row - half + 1] for row in rows) / half
        assert head["figures"]["induction"]["value"] == pytest.approx(looked, abs=1e-6)
        assert (looked > 0.99) == (address == "L1H0")


SENTENCES = (
    "The cat sat on the mat because it was tired.",
    "She gave the book to her brother yesterday.",
    "Water boils at one hundred degrees Celsius.",
    "The old bridge collapsed after the heavy storm.",
    "We walked along the river until it was dark.",
    "Trains from the north are late again this morning.",
)


@pytest.fixture(scope="module")
def measured():
    """The figures of MiniLM's heads by name, and what each puts on [CLS] by the model's own weights."""
    model, observer, on_first, rows = load(minilm()), Measurement(), 0.0, 0
    for sentence in SENTENCES:
        model.run(model.prepare(sentence), [observer])
        weights = eager_minilm(sentence)  # [layer, head, query, key]
        on_first, rows = on_first + weights[:, :, 1:, 0].sum(-1, dtype=float), rows + weights.shape[2] - 1
    return {head.name: head for head in observer.figures()}, on_first / rows


def test_a_trained_encoder_has_an_exact_previous_token_head_a_next_one_and_others_are_worth_a_look(measured):
    heads, _ = measured
    assert (heads["L0H2"].role.name, heads["L1H8"].role.name) == ("previous", "next")
    assert heads["L0H2"].role.score > 0.995
    assert heads["L1H8"].role.score == pytest.approx(0.59, abs=0.02)
    best = worth_a_look(heads.values(), 4)
    assert {head.role.name for head in best} == {"previous", "next", "first", "special"}
    assert best[0].name == "L0H2"


def test_about_half_of_its_heads_rest_on_cls(measured):
    heads, on_first = measured
    for head in heads.values():
        assert head.figures["first"].value == pytest.approx(on_first[head.site.layer, head.head], abs=1e-6)
    assert 30 <= (on_first > 0.5).sum() <= 40
