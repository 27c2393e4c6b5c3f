"""Generated text: its attention is that of one plain pass over all of it, and its tokens read as text."""

from dataclasses import replace

import pytest
import torch
import transformers
from torch import nn

from attnscope.attention import Token
from attnscope.errors import InputError, ModelError
from attnscope.models import load
from attnscope.models.text.tokens import Sampling, Vocabulary
from tests.capture.tiny import DECODER, FAMILIES, SIZES, tiny
from tests.models import folders

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
    return folders.made_once(tmp_path_factory, lambda place, name: writer_folder(place, DECODERS[name]()))


@pytest.fixture(scope="module")
def t5_folder(tmp_path_factory):
    return folders.t5(tmp_path_factory.mktemp("t5"))


def maps(model, prepared):
    """Every head, by kind and layer.  -> [head, query, key]"""
    return {(kept.site.kind, kept.site.layer): kept for kept in folders.maps(model, prepared, 4)}


def eager(folder, factory, **inputs):
    """What the model itself reports of one uncached eager pass."""
    return folders.eager(folder, factory, **inputs, use_cache=False)


@pytest.mark.parametrize("name", DECODERS)
def test_steps_are_the_models_own_attention_over_the_whole_text(folder_of, name):
    model = load(folder_of(name), generative=True)
    text = model.generate(model.prepare(TEXT), 9)
    ids = torch.tensor([[token.id for token in text.tokens]])
    assert ids.shape[1] == len(model.prepare(TEXT).tokens) + 9
    theirs = eager(folder_of(name), transformers.AutoModel, input_ids=ids).attentions
    found = maps(model, text)
    assert text.replay is not None
    assert len(found) == len(theirs)
    for (kind, layer), kept in found.items():
        assert kind == "decoder"
        assert kept.queries == kept.keys == text.tokens
        torch.testing.assert_close(kept.weights, theirs[layer], atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_greedy_is_the_likeliest_token_of_every_plain_pass(folder_of, name):
    model = load(folder_of(name), generative=True)
    prompt = model.prepare(TEXT)
    text = model.generate(prompt, 6)
    ids = torch.tensor([[token.id for token in text.tokens]])
    logits = eager(folder_of(name), transformers.AutoModelForCausalLM, input_ids=ids).logits[0]
    start = len(prompt.tokens)
    assert logits[start - 1 : -1].argmax(-1).tolist() == ids[0, start:].tolist()
    assert text.notes[-1].startswith(f"generated 6 tokens, greedy, from token {start} on: ")


def test_the_same_seed_draws_the_same_text_and_leaves_torch_as_it_was(folder_of):
    model = load(folder_of("llama"), generative=True)
    prompt = model.prepare(TEXT)
    before = torch.random.get_rng_state()
    one, again, other = (model.generate(prompt, 8, Sampling(2.0, seed)).tokens for seed in (1, 1, 2))
    assert one == again
    assert one != other
    assert torch.equal(torch.random.get_rng_state(), before)
    assert "temperature 2, seed 1" in model.generate(prompt, 8, Sampling(2.0, 1)).notes[-1]


def test_the_taste_of_a_folder_does_not_make_greedy_something_else(folder_of, tmp_path):
    plain = load(folder_of("llama"), generative=True)
    writer = transformers.AutoModelForCausalLM.from_pretrained(folder_of("llama"))
    writer.generation_config.update(repetition_penalty=5.0, do_sample=True, temperature=3.0)
    writer.save_pretrained(tmp_path)
    plain.reader.tokenizer.save_pretrained(tmp_path)
    spiced = load(str(tmp_path), generative=True)
    assert spiced.generate(spiced.prepare(TEXT), 8).tokens == plain.generate(plain.prepare(TEXT), 8).tokens


def test_an_end_token_ends_the_text_and_is_not_shown(folder_of):
    model = load(folder_of("llama"), generative=True)
    prompt = model.prepare(TEXT)
    free = [token.id for token in model.generate(prompt, 8).tokens[len(prompt.tokens) :]]
    fourth = next(number for number in range(2, 8) if free[number] not in free[:number])
    model.writer.generation_config.eos_token_id = free[fourth]
    ended = model.generate(prompt, 8)
    assert [token.id for token in ended.tokens[len(prompt.tokens) :]] == free[:fourth]
    assert "then the model ended the text" in ended.notes[-1]
    assert maps(model, ended)["decoder", 0].weights.shape[-1] == len(ended.tokens)


def test_an_encoder_decoder_writes_from_its_start_token_or_on_from_a_target(t5_folder):
    model = load(t5_folder, generative=True)
    for target, begin in ((None, 1), ("The", 1 + len(model.prepare("The").tokens) - 1)):
        prompt = model.prepare(TEXT, target)
        assert len(prompt.axes["decoder"][0]) == begin
        text = model.generate(prompt, 5)
        decoder = text.axes["decoder"][0]
        ids = torch.tensor([[token.id for token in decoder]])
        assert torch.equal(text.inputs["decoder_input_ids"], ids)
        theirs = eager(
            t5_folder, transformers.AutoModel, input_ids=text.inputs["input_ids"], decoder_input_ids=ids
        )
        found = maps(model, text)
        assert len(found) == 6
        for kind in ("encoder", "decoder", "cross"):
            for layer, weights in enumerate(getattr(theirs, f"{kind}_attentions")):
                torch.testing.assert_close(found[kind, layer].weights, weights, atol=1e-5, rtol=0)
        assert found["cross", 0].queries == decoder
        assert found["cross", 0].keys == text.tokens


def test_a_generated_text_can_be_run_in_one_plain_pass_too(folder_of):
    model = load(folder_of("mistral"), generative=True)
    text = model.generate(model.prepare(TEXT), 7)
    plain = maps(model, replace(text, replay=None))
    for place, kept in maps(model, text).items():
        torch.testing.assert_close(kept.weights, plain[place].weights, atol=1e-5, rtol=0)
        assert torch.equal(kept.allowed, plain[place].allowed)


def test_a_model_without_a_cache_is_shown_in_one_pass(folder_of, tmp_path):
    config = transformers.OpenAIGPTConfig(n_embd=32, n_layer=2, n_head=4, n_positions=64)
    folder = writer_folder(tmp_path, config)
    model = load(folder, generative=True)
    text = model.generate(model.prepare(TEXT), 5)
    assert text.replay is None
    assert any("keeps no cache: shown is one pass over all tokens" in note for note in text.notes)
    theirs = eager(folder, transformers.AutoModel, input_ids=text.inputs["input_ids"]).attentions
    torch.testing.assert_close(maps(model, text)["decoder", 1].weights, theirs[1], atol=1e-5, rtol=0)


def test_the_own_decoder_writes_what_its_scores_say():
    model = load("own-causal")
    text = model.generate(model.prepare(TEXT), 6)
    encoder, ids = model.module, text.inputs["ids"]
    with torch.inference_mode():
        likeliest = encoder.logits(encoder(ids)[0]).argmax(-1)
    assert ids.shape[1] == len(text.tokens)
    assert likeliest[-7:-1].tolist() == ids[0, -6:].tolist()
    assert not text.tokens[-1].special
    assert "[SEP] is left out at the end, so that the text can go on" in text.notes
    assert len(maps(model, text)) == 3


class Counting(nn.Module):
    """Says that the next token is the last one plus 1."""

    def __init__(self, size):
        super().__init__()
        self.size = size

    def forward(self, ids):
        return nn.functional.one_hot((ids + 1) % self.size, self.size).float(), None


def test_a_module_of_your_own_writes_if_it_returns_scores():
    from attnscope.models.text.reader import ModuleModel, load_reader

    reader = load_reader("own")
    model = ModuleModel("count.py:Counting", Counting(reader.tokenizer.get_vocab_size()), reader)
    prompt = model.prepare(TEXT)
    text = model.generate(prompt, 4)
    last = text.tokens[len(prompt.tokens) - 2].id
    assert [token.id for token in text.tokens[-4:]] == [last + step for step in range(1, 5)]
    model.module = nn.Embedding(reader.tokenizer.get_vocab_size(), 8)
    with pytest.raises(ModelError, match=r"does not generate text: it returns \[1, 7, 8\], not scores over"):
        model.generate(prompt, 4)


def test_what_does_not_write_says_so(folder_of, tmp_path):
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


def test_more_tokens_than_there_are_positions_are_refused(folder_of):
    model = load(folder_of("llama"), generative=True)
    prompt = model.prepare(f"{TEXT} " * 4)
    left = 64 - len(prompt.tokens)
    assert len(model.generate(prompt, left).tokens) == 64
    with pytest.raises(InputError, match=f"there is room for {left} more, not for {left + 1}"):
        model.generate(prompt, left + 1)


def vocabulary(spellings, texts, special=()):
    """A vocabulary whose decoder writes down ``texts``."""
    return Vocabulary(
        lambda ids: [spellings[id_] for id_ in ids],
        lambda ids: b"".join(texts[id_] for id_ in ids).decode("utf-8", "replace"),
        special,
    )


def test_bytes_of_one_character_all_read_as_that_character():
    found = vocabulary(["Ġa", "Ã", "©", "Ã", "b"], [b" a", b"\xc3", b"\xa9", b"\xc3", b"b"])
    tokens = found.extend((), [0, 1, 2, 4, 3])
    assert [token.text for token in tokens] == ["a", "é", "é", "b", "\N{REPLACEMENT CHARACTER}"]
    assert [token.word for token in tokens] == [0, 0, 0, 0, 0]


def test_generated_pieces_go_on_with_the_last_word_and_count_on():
    found = vocabulary(
        ["Ġun", "tie", "d", "Ġcat", "<end>"], [b" un", b"tie", b"d", b" cat", b"<end>"], special={4}
    )
    before = (Token("Un", 0, word=6, segment=1), Token("tie", 1, word=6, segment=1))
    tokens = found.extend(before, [2, 3, 4, 3])
    assert tokens[:2] == before
    assert [(token.text, token.word) for token in tokens[2:]] == [
        ("d", 6), ("cat", 7), ("<end>", None), ("cat", 8)
    ]  # fmt: skip
    assert [token.special for token in tokens] == [False, False, False, False, True, False]
    assert {token.segment for token in tokens} == {1}


def test_the_note_quotes_what_was_written_and_nothing_in_it_steers_a_terminal():
    from attnscope.models.text.tokens import describe_generation

    pieces = (Token("be", 1, word=3), Token("\x1b", 2, word=3), Token("cause", 3, word=4))
    tokens = (*pieces, Token("</s>", 4, True))
    for many, said in (
        (4, "generated 4 tokens, greedy, from token 7 on: be␛ cause </s>"),
        (1, "generated 1 token, greedy, from token 7 on: be; then the model ended the text"),
        (0, "generated nothing, greedy: the model ends the text here"),
    ):
        assert describe_generation(tokens[:many], 7, 4, Sampling()) == said
    assert len(describe_generation(tokens * 99, 7, 999, Sampling())) < 200
