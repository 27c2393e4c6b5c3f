"""Facts about the bundled weights, measured on text that they were not trained on."""

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
from attnscope.questions.corpus import corpus_stats
from attnscope.storage.corpus import ListedTexts

ROOT = Path(__file__).resolve().parents[2]
NAMES = ("own", "own-causal")


def sentences():
    """Two hundred sentences that were written for this project."""
    samples = [ROOT / "sample_inputs" / name for name in ("article.txt", "sentences.txt", "pairs.tsv")]
    found = []
    for path in [Path(__file__).with_name("sentences.txt"), *samples]:
        for part in re.split(r"[\n\t]", path.read_text(encoding="utf-8")):
            found += [text for text in re.split(r"(?<=[.!?])\s+", part.strip()) if len(text.split()) >= 4]
    return list(dict.fromkeys(found))[:200]


def measured(name):
    return {head.name: head for head in corpus_stats(load_model(name), ListedTexts(sentences())).heads}


@pytest.fixture(scope="module")
def own():
    return measured("own")


def most(heads, figure):
    return max(head.figures[figure].value for head in heads.values())


@pytest.mark.parametrize("name", NAMES)
def test_the_files_are_small_half_precision_and_trained(name):
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


def test_two_hundred_sentences_are_measured():
    assert len(sentences()) == 200


@pytest.mark.parametrize(("pattern", "least"), [("previous", 0.5), ("next", 0.5), ("duplicate", 0.4)])
def test_the_default_encoder_has_heads_for(own, pattern, least):
    assert most(own, pattern) >= least
    assert pattern in {head.role.name for head in own.values() if head.role}


def test_the_default_encoders_heads_have_four_roles_or_more(own):
    assert len({head.role.name for head in own.values() if head.role}) >= 4


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("The [MASK] sat on the throne.", "king"),
        ("She opened the [MASK] and looked out.", "window"),
        ("I do not [MASK] what you mean.", "know"),
    ],
)
def test_a_hidden_word_is_among_the_first_five_guesses(text, word):
    encoder, tokenizer = load_encoder(folder_of("own"))
    ids = torch.tensor([tokenizer.encode(text).ids])
    place = int((ids[0] == tokenizer.token_to_id("[MASK]")).nonzero())
    with torch.inference_mode():
        best = encoder.logits(encoder(ids))[0, place].topk(5).indices.tolist()
    assert word in [tokenizer.id_to_token(id_) for id_ in best]


@pytest.fixture(scope="module")
def copying():
    """The causal encoder on twenty texts of forty random tokens that come twice."""
    encoder, tokenizer = load_encoder(folder_of("own-causal"))
    chance = torch.Generator().manual_seed(0)
    observer = Measurement()
    for _ in range(20):
        unit = torch.randint(5, tokenizer.get_vocab_size(), (40,), generator=chance).tolist()
        ids = [tokenizer.token_to_id("[CLS]"), *unit, *unit]
        tokens = tuple(Token(tokenizer.id_to_token(id_), id_, id_ < 5) for id_ in ids)
        observer.label(dict.fromkeys(("encoder", "decoder"), ((tokens,), (tokens,))))
        with torch.inference_mode(), recording(encoder, [observer]):
            encoder(torch.tensor([ids]))
    return {head.name: head for head in observer.figures()}


def test_the_causal_encoder_has_an_induction_head_and_a_previous_token_head(
    copying,
):
    assert most(copying, "induction") >= 0.4
    assert most(copying, "previous") >= 0.5
    assert "induction" in {head.role.name for head in copying.values() if head.role}


def test_the_causal_encoder_copies():
    encoder, tokenizer = load_encoder(folder_of("own-causal"))
    unit = torch.randint(5, tokenizer.get_vocab_size(), (10, 40), generator=torch.Generator().manual_seed(1))
    ids = torch.cat([torch.full((10, 1), tokenizer.token_to_id("[CLS]")), unit, unit], dim=1)
    with torch.inference_mode():
        guesses = encoder.logits(encoder(ids)).argmax(-1)
    right = (guesses[:, :-1] == ids[:, 1:]).float()
    assert right[:, :39].mean() < 0.05, "what is random cannot be guessed"
    assert right[:, 45:].mean() > 0.5
