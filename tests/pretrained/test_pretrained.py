"""Properties of the bundled weights on text that they were not trained on."""

import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from attnscope.attention import Token
from attnscope.capture import recording
from attnscope.measures import Measurement
from attnscope.models import load as load_model
from attnscope.network import folder_of, load_encoder
from attnscope.questions.corpus_stats import corpus_stats
from attnscope.storage.corpus import ListedTexts

ROOT = Path(__file__).resolve().parents[2]


def sentences():
    """Two hundred sentences that were written for this project."""
    samples = [ROOT / "sample_inputs" / name for name in ("article.txt", "sentences.txt", "pairs.tsv")]
    found = []
    for path in [Path(__file__).with_name("sentences.txt"), *samples]:
        for part in re.split(r"[\n\t]", path.read_text(encoding="utf-8")):
            found += [text for text in re.split(r"(?<=[.!?])\s+", part.strip()) if len(text.split()) >= 4]
    return list(dict.fromkeys(found))[:200]


def roles_of(heads, least):
    """The roles of heads, some of which have scores that are so large at least."""
    for name, value in least.items():
        assert max(head.scores[name].value for head in heads) >= value, name
    return {head.role.name for head in heads if head.role}


@pytest.mark.parametrize("name", ["own", "own-causal"])
def test_bundled_encoders_are_small_half_precision_and_trained(name):
    folder = folder_of(name)
    assert sum(path.stat().st_size for path in folder.iterdir()) < 12e6
    assert {x.dtype for x in load_file(folder / "model.safetensors").values()} == {torch.float16}
    encoder, tokenizer = load_encoder(folder)
    assert encoder.config.trained
    assert encoder.config.causal == (name == "own-causal")
    assert tokenizer.get_vocab_size() == encoder.config.vocabulary
    card = (folder / "README.md").read_text(encoding="utf-8")
    assert "attnscope train" in card
    assert f"{sum(parameter.numel() for parameter in encoder.parameters()):,} parameters" in card


def test_default_encoder_has_at_least_four_roles():
    assert len(sentences()) == 200
    heads = corpus_stats(load_model("own"), ListedTexts(sentences())).heads
    roles = roles_of(heads, {"previous": 0.5, "next": 0.5, "duplicate": 0.4})
    assert roles >= {"previous", "next", "duplicate"}
    assert len(roles) >= 4


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("The [MASK] sat on the throne.", "king"),
        ("She opened the [MASK] and looked out.", "window"),
        ("I do not [MASK] what you mean.", "know"),
    ],
)
def test_masked_word_is_in_the_top_five(text, word):
    encoder, tokenizer = load_encoder(folder_of("own"))
    ids = torch.tensor([tokenizer.encode(text).ids])
    place = int((ids[0] == tokenizer.token_to_id("[MASK]")).nonzero())
    with torch.inference_mode():
        best = encoder.logits(encoder(ids))[0, place].topk(5).indices.tolist()
    assert word in [tokenizer.id_to_token(id_) for id_ in best]


def test_causal_encoder_has_induction_and_previous_token_heads():
    """Texts of forty random tokens that come twice."""
    encoder, tokenizer = load_encoder(folder_of("own-causal"))
    unit = torch.randint(5, tokenizer.get_vocab_size(), (20, 40), generator=torch.Generator().manual_seed(0))
    ids = torch.cat([torch.full((20, 1), tokenizer.token_to_id("[CLS]")), unit, unit], dim=1)
    texts = [tuple(Token(tokenizer.id_to_token(id_), id_, id_ < 5) for id_ in text) for text in ids.tolist()]
    observer = Measurement()
    observer.label({"decoder": (texts, texts)})
    with torch.inference_mode(), recording(encoder, [observer]):
        guesses = encoder.logits(encoder(ids)).argmax(-1)
    assert "induction" in roles_of(observer.scores(), {"induction": 0.4, "previous": 0.5})
    right = (guesses[:, :-1] == ids[:, 1:]).float()
    assert right[:, :39].mean() < 0.05, "what is random cannot be guessed"
    assert right[:, 45:].mean() > 0.5
