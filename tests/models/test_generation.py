"""Generated text: its attention equals one plain pass over all of it, and its tokens read as text."""

from dataclasses import replace
from functools import cache
from unittest.mock import Mock

import pytest
import torch
import transformers
from torch import nn

from attnscope.attention import Token
from attnscope.errors import InputError, ModelError
from attnscope.models import load
from attnscope.models.text.reader import ModuleModel, load_reader
from attnscope.models.text.tokens import Sampling, Vocabulary, describe_generation
from tests.capture.tiny import DECODER, FAMILIES, SIZES, tiny
from tests.models import folders
from tests.models.folders import eager_maps

TEXT = "The cat sat on the mat"
WINDOWS = {"head_dim": 8, "sliding_window": 4, "sliding_window_pattern": 3}
DECODERS = {
    **{name: FAMILIES[name].config for name in ("gpt2", "llama", "mistral", "gpt-oss")},
    # its soft cap hardly bends: older releases leave it out beside torch's kernel, and other states follow
    "gemma2": tiny("Gemma2", **DECODER, head_dim=8, sliding_window=4).config,
    "gemma3": tiny("Gemma3Text", **DECODER, **WINDOWS).config,
    "bloom": tiny("Bloom", hidden_size=32, n_layer=2, n_head=4).config,
}


def writer_folder(folder, config):
    """A tiny random decoder with its language-model head and a byte-level tokenizer."""
    folders.gpt2(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    config.vocab_size = len(tokenizer)
    config.bos_token_id = config.eos_token_id = config.pad_token_id = tokenizer.eos_token_id
    return folders.save(folder, transformers.AutoModelForCausalLM.from_config(config), tokenizer)


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory):
    def make(place, name):
        return folders.t5(place) if name == "t5" else writer_folder(place, DECODERS[name]())

    return folders.made_once(tmp_path_factory, make)


@pytest.fixture(scope="module")
def writer_of(folder_of):
    return cache(lambda name: load(folder_of(name), generative=True))


def eager(folder, factory=transformers.AutoModel, **inputs):
    """What the model itself reports of one uncached eager pass."""
    return folders.eager(folder, factory, **inputs, use_cache=False)


def ids_of(tokens):
    return [token.id for token in tokens]


@pytest.mark.sweep(3)
@pytest.mark.parametrize("name", DECODERS)
def test_greedy_steps_are_most_likely_with_eager_attention(folder_of, writer_of, name):
    model = writer_of(name)
    prompt = model.prepare(TEXT)
    text, start = model.generate(prompt, 9), len(prompt.tokens)
    ids = torch.tensor([ids_of(text.tokens)])
    assert len(text.tokens) == start + 9
    assert text.notes[-1].startswith(f"generated 9 tokens, greedy, from token {start} on: ")
    assert text.replay is not None
    theirs = eager(folder_of(name), transformers.AutoModelForCausalLM, input_ids=ids)
    assert theirs.logits[0, start - 1 : -1].argmax(-1).tolist() == ids[0, start:].tolist()
    for kept in eager_maps(model, text, theirs, 4):
        assert kept.site.kind == "decoder"
        assert kept.queries == kept.keys == text.tokens


def test_step_after_the_end_token_is_no_row(folder_of, monkeypatch):
    utils = transformers.generation.utils
    late = getattr(utils, "DeferredStopCheck", None)  # which stands for GPUs that are read one step late
    if late is None:
        pytest.skip("this transformers always stops in time")
    model = load(folder_of("llama"), generative=True)
    prompt = model.prepare(TEXT)
    whole = ids_of(model.generate(prompt, 9).tokens)
    model.writer.generation_config.eos_token_id = whole[len(prompt.tokens) + 2]
    monkeypatch.setattr(late, "is_supported", lambda *given, **named: True)
    monkeypatch.setattr(torch, "Event", Mock)
    text = model.generate(prompt, 9)
    assert text.notes[-1].endswith("; then the model ended the text")
    assert {len(each.queries) for each in text.replay.attentions} == {len(text.tokens)}


def test_sampling_is_seeded_and_restores_torch_state(writer_of):
    model = writer_of("llama")
    prompt, before = model.prepare(TEXT), torch.random.get_rng_state()
    one, again, other = (model.generate(prompt, 8, Sampling(2.0, seed)) for seed in (1, 1, 2))
    assert one.tokens == again.tokens
    assert one.tokens != other.tokens
    assert torch.equal(torch.random.get_rng_state(), before)
    assert "temperature 2, seed 1" in one.notes[-1]


def test_generation_config_does_not_change_greedy_decoding(folder_of, writer_of, tmp_path):
    plain = writer_of("llama")
    writer = transformers.AutoModelForCausalLM.from_pretrained(folder_of("llama"))
    writer.generation_config.update(repetition_penalty=5.0, do_sample=True, temperature=3.0)
    writer.save_pretrained(tmp_path)
    plain.reader.tokenizer.save_pretrained(tmp_path)
    spiced = load(str(tmp_path), generative=True)
    assert spiced.generate(spiced.prepare(TEXT), 8).tokens == plain.generate(plain.prepare(TEXT), 8).tokens


def test_end_token_ends_generation_and_is_hidden(folder_of):
    model = load(folder_of("llama"), generative=True)
    prompt = model.prepare(TEXT)
    start = len(prompt.tokens)
    free = ids_of(model.generate(prompt, 8).tokens[start:])
    fourth = next(number for number in range(2, 8) if free[number] not in free[:number])
    model.writer.generation_config.eos_token_id = free[fourth]
    ended = model.generate(prompt, 8)
    assert ids_of(ended.tokens[start:]) == free[:fourth]
    assert "then the model ended the text" in ended.notes[-1]
    assert folders.maps(model, ended)[0].weights.shape[-1] == len(ended.tokens)


def test_encoder_decoder_generates_from_start_token_or_target(folder_of, writer_of):
    model = writer_of("t5")
    for target, begin in ((None, 1), ("The", 1 + len(model.prepare("The").tokens) - 1)):
        prompt = model.prepare(TEXT, target)
        assert len(prompt.axes["decoder"][0]) == begin
        text = model.generate(prompt, 5)
        decoder = text.axes["decoder"][0]
        ids = torch.tensor([ids_of(decoder)])
        assert torch.equal(text.inputs["decoder_input_ids"], ids)
        theirs = eager(folder_of("t5"), input_ids=text.inputs["input_ids"], decoder_input_ids=ids)
        found = eager_maps(model, text, theirs, 4)
        assert len(found) == 6
        cross = next(kept for kept in found if kept.site.kind == "cross")
        assert (cross.queries, cross.keys) == (decoder, text.tokens)


def test_generated_text_equals_one_plain_pass(writer_of):
    model = writer_of("mistral")
    text = model.generate(model.prepare(TEXT), 7)
    passes = (folders.maps(model, each, 4) for each in (text, replace(text, replay=None)))
    for kept, plain in zip(*passes, strict=True):
        torch.testing.assert_close(kept.weights, plain.weights, atol=1e-5, rtol=0)
        assert torch.equal(kept.allowed, plain.allowed)


def test_model_without_cache_is_shown_in_one_pass(tmp_path):
    config = transformers.OpenAIGPTConfig(n_embd=32, n_layer=2, n_head=4, n_positions=64)
    folder = writer_folder(tmp_path, config)
    model = load(folder, generative=True)
    text = model.generate(model.prepare(TEXT), 5)
    assert text.replay is None
    assert any("has no key-value cache: one pass over all tokens is shown" in note for note in text.notes)
    eager_maps(model, text, eager(folder, input_ids=text.inputs["input_ids"]), 4)


def test_own_causal_generates_its_argmax():
    model = load("own-causal")
    text = model.generate(model.prepare(TEXT), 6)
    encoder, ids = model.module, text.inputs["ids"]
    with torch.inference_mode():
        likeliest = encoder.logits(encoder(ids)[0]).argmax(-1)
    assert ids.shape[1] == len(text.tokens)
    assert likeliest[-7:-1].tolist() == ids[0, -6:].tolist()
    assert not text.tokens[-1].special
    assert "[SEP] is left out at the end, so that the text can continue" in text.notes
    assert len(folders.maps(model, text)) == 3


class Counting(nn.Embedding):
    """Says that the next token is the last one plus 1."""

    def forward(self, ids):
        return nn.functional.one_hot((ids + 1) % self.num_embeddings, self.num_embeddings).float(), None


def test_own_module_generates_if_it_returns_logits():
    reader = load_reader("own")
    size = reader.tokenizer.get_vocab_size()
    model = ModuleModel("count.py:Counting", Counting(size, 8), reader)
    prompt = model.prepare(TEXT)
    text = model.generate(prompt, 4)
    last = text.tokens[len(prompt.tokens) - 2].id
    assert ids_of(text.tokens[-4:]) == [last + step for step in range(1, 5)]
    model.module = nn.Embedding(size, 8)
    with pytest.raises(ModelError, match=r"does not generate text: it returns \[1, 7, 8\], not scores over"):
        model.generate(prompt, 4)


def test_generation_without_language_head_is_refused(folder_of, tmp_path):
    tokenizer = transformers.AutoTokenizer.from_pretrained(folders.minilm())
    config = transformers.BertConfig(**SIZES | {"vocab_size": len(tokenizer)}, num_hidden_layers=3)
    masked = folders.save(tmp_path, transformers.BertForMaskedLM(config), tokenizer)
    for model, more in ((load("own"), ": own-causal does"), (load(masked, generative=True), "")):
        with pytest.raises(ModelError, match=f"reads in both directions and cannot continue a text{more}"):
            model.generate(model.prepare(TEXT), 3)
    with pytest.raises(ModelError, match="has no language-model head"):
        load(folders.minilm(), generative=True)
    plain = load(folder_of("gpt2"))
    with pytest.raises(ModelError, match="load it with generative=True"):
        plain.generate(plain.prepare(TEXT), 3)


def test_generation_beyond_positions_is_refused(writer_of):
    model = writer_of("llama")
    prompt = model.prepare(f"{TEXT} " * 4)
    left = 64 - len(prompt.tokens)
    assert len(model.generate(prompt, left).tokens) == 64
    with pytest.raises(InputError, match=f"there is room for {left} more, not for {left + 1}"):
        model.generate(prompt, left + 1)


def vocabulary(pieces, special=()):
    """A vocabulary of spellings, and what its decoder writes down for each."""
    spellings, texts = [*pieces], [*pieces.values()]
    return Vocabulary(
        lambda ids: [spellings[id_] for id_ in ids],
        lambda ids: b"".join(texts[id_] for id_ in ids).decode("utf-8", "replace"),
        special,
    )


def test_bytes_of_one_character_show_that_character():
    found = vocabulary({"Ġa": b" a", "Ã": b"\xc3", "©": b"\xa9", "b": b"b"})
    tokens = found.extend((), [0, 1, 2, 3, 1])
    assert [token.text for token in tokens] == ["a", "é", "é", "b", "\N{REPLACEMENT CHARACTER}"]
    assert [token.word for token in tokens] == [0, 0, 0, 0, 0]


def test_generated_pieces_continue_word_numbers():
    pieces = {"Ġun": b" un", "tie": b"tie", "d": b"d", "Ġcat": b" cat", "<end>": b"<end>"}
    before = (Token("Un", 0, word=6, segment=1), Token("tie", 1, word=6, segment=1))
    tokens = vocabulary(pieces, special={4}).extend(before, [2, 3, 4, 3])
    assert tokens[:2] == before
    assert [token.text for token in tokens[2:]] == ["d", "cat", "<end>", "cat"]
    assert [token.word for token in tokens[2:]] == [6, 7, None, 8]
    assert [token.special for token in tokens] == [False, False, False, False, True, False]
    assert {token.segment for token in tokens} == {1}


def test_generation_note_quotes_text_without_control_codes():
    pieces = (Token("be", 1, word=3), Token("\x1b", 2, word=3), Token("cause", 3, word=4))
    tokens = (*pieces, Token("</s>", 4, True))
    for many, said in (
        (4, "generated 4 tokens, greedy, from token 7 on: be␛ cause </s>"),
        (1, "generated 1 token, greedy, from token 7 on: be; then the model ended the text"),
        (0, "generated nothing, greedy: the model ends the text here"),
    ):
        assert describe_generation(tokens[:many], 7, 4, Sampling()) == said
    assert len(describe_generation(tokens * 99, 7, 999, Sampling())) < 200
