"""The models and files that the recorded commands read, with the same bytes everywhere."""

import json
import shutil
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

import numpy as np
import torch
import transformers as hf
from PIL import Image
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

LINES = [
    "The cat sat on the mat because it was tired.",
    "A small tokenizer wants only a few lines to learn from, and these are some of them.",
    "Attention heads look at words, and words look back; the dog sat under the old tree.",
    "On Monday the ferryman rang the little brass bell that hangs by the landing.",
]

MODULE = """
import torch
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(32, 96), nn.Linear(32, 32)

    def forward(self, x):
        q, k, v = (y.view(*x.shape[:2], 4, 8).transpose(1, 2) for y in self.qkv(x).split(32, 2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.out(y.transpose(1, 2).reshape(x.shape))


class Gpt(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.blocks = nn.Embedding(9000, 32), nn.ModuleList(Block() for _ in range(2))
        self.head = nn.Linear(32, 9000)

    def forward(self, ids):
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Cross(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.attend = nn.MultiheadAttention(16, 2, batch_first=True)

    def forward(self, queries, keys):
        return self.attend(queries, keys, keys)[0]


def breaks():
    raise ValueError("no weights here")


number = 3
"""

API = """
import sys
import warnings

import torch

import attnscope

warnings.simplefilter("ignore")
model = attnscope.load(sys.argv[1])
run = model.read("The cat sat on the mat.")
print(run, run.head("L1H1"), run.token("on"), run.stats(), run.compare(), sep="\\n")
print(run.head("L1H1").weights.tolist())
run.save("cat.trace")
print(attnscope.open("cat.trace").head("L1H1"))
print(all(getattr(attnscope, name) for name in attnscope.__all__))
"""

CHAT = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
PLAIN = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 32}
READER = {**PLAIN, "max_position_embeddings": 64}
GROUPED = {**PLAIN, "num_key_value_heads": 2, "max_position_embeddings": 2048}
GPT = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
ENDS = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}
EXPERTS = {"head_dim": 8, "num_local_experts": 4, "num_experts_per_tok": 2}
SOFT = {"head_dim": 8, "sliding_window": 6, "attn_logit_softcapping": 0.5}
PAIR = {f"{side}_{name}": value for side in ("encoder", "decoder") for name, value in
        {"layers": 2, "attention_heads": 4, "ffn_dim": 32}.items()} | {"d_model": 32}  # fmt: skip
BART = {**PAIR, "pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 0, "decoder_start_token_id": 0}
T5 = {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4, "decoder_start_token_id": 0}
GROUPS = dict.fromkeys(("q_groups", "k_groups", "v_groups", "post_attention_groups", "intermediate_groups",
                        "output_groups"), 1)  # fmt: skip
REFORMER = {
    "hidden_size": 32, "attention_head_size": 8, "num_attention_heads": 4, "feed_forward_size": 16,
    "attn_layers": ["local", "lsh"], "local_attn_chunk_length": 4, "lsh_attn_chunk_length": 4,
    "num_buckets": 4, "num_hashes": 2, "hash_seed": 5, "is_decoder": True, "use_cache": False,
    "axial_pos_shape": [8, 8], "axial_pos_embds_dim": [16, 16], "max_position_embeddings": 64,
}  # fmt: skip
JAMBA = {
    **PLAIN, "num_hidden_layers": 4, "num_key_value_heads": 2, "num_experts": 2, "attn_layer_period": 4,
    "attn_layer_offset": 2, "use_mamba_kernels": False, "mamba_d_state": 4,
}  # fmt: skip
VIT = {**PLAIN, "num_hidden_layers": 2, "image_size": 64, "patch_size": 16}
SWIN = {"image_size": 64, "patch_size": 4, "embed_dim": 16, "depths": [2, 1], "num_heads": [2, 2],
        "window_size": 4}  # fmt: skip
SQUARE = {"height": 64, "width": 64}
WHOLE, CROPPED = {"size": SQUARE}, {"size": {"shortest_edge": 64}, "crop_size": SQUARE}
SIZES = {f"{name}ImageProcessor": WHOLE for name in ("ViT", "Siglip")}
SIZES |= {f"{name}ImageProcessor": CROPPED for name in ("Bit", "CLIP")}
CLIP = {"text_config": {**READER, "eos_token_id": 3}, "vision_config": VIT, "projection_dim": 16}
MODELS = {  # folder: model, the settings of its config, what prepares its inputs
    "bert": ("BertForMaskedLM", READER, "pieces"),
    "bert-other": ("BertForMaskedLM", {**READER, "num_attention_heads": 2}, "pieces"),
    "albert": ("AlbertModel", {**READER, "embedding_size": 16}, "pieces"),
    "deberta": ("DebertaV2Model", {**READER, "relative_attention": True, "pos_att_type": ["p2c", "c2p"]},
                "pieces"),
    "modernbert": ("ModernBertModel", {**READER, **ENDS, "local_attention": 6, "cls_token_id": 2,
                   "sep_token_id": 3}, "pieces"),
    "squeezebert": ("SqueezeBertModel", {**READER, **GROUPS, "embedding_size": 32}, "pieces"),
    "longformer": ("LongformerModel", {**READER, "attention_window": [4, 8, 8]}, "pieces"),
    "gpt2": ("GPT2LMHeadModel", GPT | ENDS, "bytes"),
    "openai-gpt": ("OpenAIGPTLMHeadModel", GPT, "bytes"),
    "llama": ("LlamaForCausalLM", GROUPED | ENDS, "bytes"),
    "mistral": ("MistralForCausalLM", {**GROUPED, "sliding_window": 4} | ENDS, "bytes"),
    "gemma2": ("Gemma2ForCausalLM", GROUPED | SOFT | ENDS, "bytes"),
    "gpt-oss": ("GptOssForCausalLM", {**GROUPED, **EXPERTS, "sliding_window": 4} | ENDS, "bytes"),
    "bloom": ("BloomForCausalLM", {"hidden_size": 32, "n_layer": 2, "n_head": 4} | ENDS, "bytes"),
    "jamba": ("JambaForCausalLM", JAMBA | ENDS, "bytes"),
    "mamba": ("MambaModel", {"hidden_size": 32, "state_size": 4, "num_hidden_layers": 2}, "bytes"),
    "reformer": ("ReformerModel", REFORMER, "bytes"),
    "t5": ("T5ForConditionalGeneration", T5, "sentencepiece"),
    "bart": ("BartForConditionalGeneration", {**BART, "max_position_embeddings": 64}, "sentencepiece"),
    "led": ("LEDModel", {**BART, "attention_window": 4, "max_encoder_position_embeddings": 40},
            "sentencepiece"),
    "pegasus-x": ("PegasusXModel", {**BART, "block_size": 4, "num_global_tokens": 3}, "sentencepiece"),
    "vit": ("ViTModel", VIT, "ViTImageProcessor"),
    "dinov2-registers": ("Dinov2WithRegistersModel", VIT, "BitImageProcessor"),
    "siglip-vision": ("SiglipVisionModel", VIT, "SiglipImageProcessor"),
    "swin": ("SwinModel", SWIN, "ViTImageProcessor"),
    "clip": ("CLIPModel", CLIP, "CLIPImageProcessor", "pieces"),
    "vilt": ("ViltModel", VIT, "ViTImageProcessor", "pieces"),
}  # fmt: skip
COPIED = {"pickled": "gpt2", "coded": "bert", "chat": "llama", "chat-refusing": "llama"}
"""Further folders, each with the model that it is made of, or that has its code."""


def make(scratch: Path, names: Collection[str]) -> None:
    (scratch / "models").mkdir()
    if names:
        make_models(scratch / "models", names)
    make_files(scratch / "files")


def make_files(folder: Path) -> None:
    """A module of one's own, tensors, images, texts in every form of a corpus, weights of other tools."""
    random, (rows, columns) = np.random.default_rng(0), np.mgrid[0:48, 0:80]
    folder.mkdir()
    (folder / "module.py").write_text(MODULE)
    (folder / "api.py").write_text(API)
    drawn = {name: random.normal(size=(1, count, 16)) for name, count in (("queries", 3), ("keys", 7))}
    tensors = {name: torch.from_numpy(each.astype(np.float32)) for name, each in drawn.items()}
    save_file(tensors, folder / "tensors.safetensors")
    np.savez(folder / "tensors.npz", **{name: tensor.numpy() for name, tensor in tensors.items()})
    torch.save(tensors, folder / "tensors.pt")
    np.savez(folder / "numbered.npz", *(tensor.numpy() for tensor in tensors.values()))
    np.savez(folder / "unknown.npz", values=np.zeros(3, np.float32))
    pixels = np.stack([columns * 255 // 80, rows * 255 // 48, np.zeros_like(rows)], -1)
    pixels[:12, :20] = (0, 0, 255)
    image = Image.fromarray(pixels.astype(np.uint8))
    image.save(folder / "corner.png")
    image.convert("L").save(folder / "grey.bmp")
    texts = [*LINES, "", "One more, with “quotes” and — dashes."]
    (folder / "texts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    other = [*(json.dumps({"said": text}) for text in LINES), "no json", '{"text": "a"}', '{"said": 3}']
    (folder / "faults.jsonl").write_text("\n".join(other))
    (folder / "bytes.txt").write_bytes(b"The cat sat.\nThe d\xe9g sat.\n\nThe dog sat on the mat.\n")
    (folder / "empty.txt").write_text("\n  \n")
    (folder / "evil.txt").write_text("The \x1b[31mcat\x1b[0m sat on $x^2$ <b>and</b> [bold]looked[/bold].\n")
    (folder / "folder" / "inside").mkdir(parents=True)
    for number, text in enumerate(LINES):
        (folder / "folder" / ("inside" if number % 2 else "") / f"{number}.txt").write_text(text)
    with suppress(ImportError):
        import pyarrow
        from pyarrow import parquet

        table = pyarrow.table({"text": texts, "said": LINES + LINES[:2]})
        parquet.write_table(table, folder / "texts.parquet")
    scores = random.normal(size=(2, 3, 6, 6))
    weights = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
    np.save(folder / "layers.npy", weights.astype(np.float32))
    named = {f"layer{number}": each for number, each in enumerate(weights.astype(np.float32))}
    np.savez(folder / "named.npz", **named, tokens=np.array(list("abcdef")))
    save_file({name: torch.from_numpy(each) for name, each in named.items()}, folder / "named.safetensors")
    (folder / "layers.json").write_text(json.dumps(weights[:, None].round(4).tolist()))
    np.savez(folder / "negative.npz", scores)
    np.savez(folder / "nan.npz", layer0=np.where(scores[0] > 1, np.nan, weights[0]))
    np.savez(folder / "causal.npz", layer0=(tril := np.tril(weights[0])) / tril.sum(-1, keepdims=True))
    (folder / "broken.npz").write_bytes((folder / "named.npz").read_bytes()[:200])
    (folder / "broken.json").write_text('{"layer0": [[1, ')


def load_classes(names: Collection[str]) -> None:
    """Import the code of the models that are named."""
    for name in _wanted(names):
        getattr(hf, MODELS[name][0])


def _wanted(names: Collection[str]) -> list[str]:
    """The models that are named, and those that are copied."""
    return [name for name in MODELS if name in {*names, *(COPIED.get(name) for name in names)}]


def make_models(folder: Path, names: Collection[str]) -> None:
    """A folder for each model that is named, with the tokenizer or the processor that it needs."""
    tokenizers = {"pieces": _pieces(), "bytes": _bytes(), "sentencepiece": _sentencepiece()}
    for name in _wanted(names):
        model, settings, *needed = MODELS[name]
        parts = [tokenizers.get(each) or getattr(hf, each)(**SIZES[each]) for each in needed]
        words = {"vocab_size": len(tokenizers[needed[-1]])} if needed[-1] in tokenizers else {}
        if "text_config" in settings:
            settings, words = {**settings, "text_config": settings["text_config"] | words}, {}
        _save(folder / name, model, words | settings)
        for part in parts:
            part.save_pretrained(folder / name)
    for name, make in (("chat", _chat), ("pickled", _pickled), ("coded", _coded)):
        if {name, f"{name}-refusing"} & {*names}:
            make(folder)


def _pickled(folder: Path) -> None:
    shutil.copytree(folder / "gpt2", folder / "pickled")
    weights = hf.AutoModelForCausalLM.from_pretrained(folder / "gpt2").state_dict()
    torch.save(weights, folder / "pickled" / "pytorch_model.bin")
    (folder / "pickled" / "model.safetensors").unlink()


def _coded(folder: Path) -> None:
    shutil.copytree(folder / "bert", folder / "coded")
    told = json.loads((folder / "bert" / "config.json").read_text())
    told |= {"model_type": "coded", "auto_map": {"AutoConfig": "code.Coded", "AutoModel": "code.CodedModel"}}
    (folder / "coded" / "config.json").write_text(json.dumps(told))
    (folder / "coded" / "code.py").write_text(
        "from transformers import BertConfig, BertModel\n\n\nclass Coded(BertConfig):\n"
        "    model_type = 'coded'\n\n\nclass CodedModel(BertModel):\n    config_class = Coded\n"
    )


def _save(folder: Path, name: str, settings: dict) -> None:
    torch.manual_seed(0)
    kind = getattr(hf, name)
    made = kind(kind.config_class(**settings))
    torch.manual_seed(0)
    for weights in made.parameters():
        if weights.ndim > 1:
            torch.nn.init.normal_(weights, std=0.2)
    made.save_pretrained(folder)


def _chat(folder: Path) -> None:
    words = _bytes()
    words.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>"]})
    words.chat_template = CHAT
    _save(folder / "chat", "LlamaForCausalLM", {**GROUPED, **ENDS, "vocab_size": len(words)})
    words.save_pretrained(folder / "chat")
    words.chat_template = "{{ raise_exception('only about dogs') }}"
    shutil.copytree(folder / "chat", folder / "chat-refusing")
    words.save_pretrained(folder / "chat-refusing")


def _bytes() -> hf.PreTrainedTokenizerFast:
    found = Tokenizer(models.BPE())
    found.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    found.decoder = decoders.ByteLevel()
    alphabet, end = pre_tokenizers.ByteLevel.alphabet(), "<|endoftext|>"
    trainer = trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, special_tokens=[end])
    found.train_from_iterator(LINES, trainer)
    return hf.PreTrainedTokenizerFast(tokenizer_object=found, eos_token=end)


def _pieces() -> hf.PreTrainedTokenizerFast:
    """Its pieces are written down, too: the frequent words, and letters for the rest."""
    special = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]",
               "mask_token": "[MASK]"}  # fmt: skip
    words = sorted({word for line in LINES for word in line.lower().split() if word.isalpha()})[::2]
    letters = sorted({letter for line in LINES for letter in line.lower() if letter != " "})
    pieces = [*special.values(), "##ed", "##s", *words, *letters, *(f"##{letter}" for letter in letters)]
    vocabulary = {piece: number for number, piece in enumerate(dict.fromkeys(pieces))}
    found = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    found.normalizer, found.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    found.decoder = decoders.WordPiece()
    ends = [(token, found.token_to_id(token)) for token in ("[CLS]", "[SEP]")]
    single, pair = "[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1"
    found.post_processor = processors.TemplateProcessing(single, pair, ends)
    return hf.PreTrainedTokenizerFast(tokenizer_object=found, **special)


def _sentencepiece() -> hf.PreTrainedTokenizerFast:
    """Its pieces and their scores are written down, not learned: learning them ends differently each time."""
    letters = sorted({letter for line in LINES for letter in line if letter != " "})
    words = sorted({f"▁{word}" for line in LINES for word in line.split()})
    pieces = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("▁", -4.0)]
    pieces += [(word, -5.0 - len(word) / 8) for word in words] + [(letter, -6.0) for letter in letters]
    found = Tokenizer(models.Unigram(pieces, unk_id=2))
    found.normalizer, found.pre_tokenizer = normalizers.NFKC(), pre_tokenizers.Metaspace()
    found.decoder = decoders.Metaspace()
    found.post_processor = processors.TemplateProcessing("$A </s>", "$A </s> $B </s>", [("</s>", 1)])
    return hf.PreTrainedTokenizerFast(
        tokenizer_object=found, eos_token="</s>", pad_token="<pad>", unk_token="<unk>"
    )
