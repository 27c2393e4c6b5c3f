"""Tiny folders of speech models with their processors, and sound files."""

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from tests.models import folders

SECONDS = 2
FRAMES = 50 * SECONDS
LAYERS, HEADS = 2, 2
NAMES = "endoftext startoftranscript en de translate transcribe notimestamps 0.00 0.02"
SPECIAL = [f"<|{name}|>" for name in NAMES.split()]
CONVOLUTIONS = {"conv_dim": (16, 16), "conv_kernel": (20, 16), "conv_stride": (20, 16)}
POSITIONS = {"num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 2}
SIZES = {"hidden_size": 32, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS}
ENCODER = SIZES | CONVOLUTIONS | POSITIONS
ENCODER |= {"intermediate_size": 32, "num_feat_extract_layers": 2, "vocab_size": 8}
"""One frame is 320 samples, as in the models that people use."""

ENCODERS = {"wav2vec2": "Wav2Vec2", "hubert": "Hubert", "wavlm": "WavLM", "unispeech-sat": "UniSpeechSat"}
"""Their names in class names."""


def whisper(folder: Path, *, seed: int = 0, alignment_heads: object = ((0, 1), (1, 0))) -> str:
    """A tiny Whisper with two seconds to hear, a byte-level tokenizer and two languages."""
    sides = {
        f"{side}_{name}": size
        for side in ("encoder", "decoder")
        for name, size in (("layers", LAYERS), ("attention_heads", HEADS), ("ffn_dim", 32))
    }
    lengths = {"num_mel_bins": 16, "max_source_positions": FRAMES, "max_target_positions": 48}
    config = transformers.WhisperConfig(
        d_model=32, vocab_size=len(tokenizer()), **sides, **lengths, **tokens()
    )
    torch.manual_seed(seed)
    model = transformers.WhisperForConditionalGeneration(config)
    model.generation_config = transformers.GenerationConfig(
        **tokens(),
        alignment_heads=alignment_heads,
        is_multilingual=True,
        lang_to_id={language: spell(language) for language in ("<|en|>", "<|de|>")},
        task_to_id={task: spell(f"<|{task}|>") for task in ("translate", "transcribe")},
        no_timestamps_token_id=spell("<|notimestamps|>"),
        prev_sot_token_id=spell("<|startoftranscript|>"),
        suppress_tokens=[spell(one) for one in SPECIAL[1:]],
        max_length=48,
    )
    extractor = transformers.WhisperFeatureExtractor(feature_size=16, chunk_length=SECONDS)
    return folders.save(folder, model, tokenizer(), extractor, seed=None)


def tokenizer(lines: Sequence[str] = folders.LINES) -> transformers.WhisperTokenizer:
    """A byte-level tokenizer with the special tokens of Whisper."""
    learned = Tokenizer(models.BPE())
    learned.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=320, initial_alphabet=alphabet, show_progress=False)
    learned.train_from_iterator(lines, trainer)
    held = json.loads(learned.to_str())["model"]
    made = transformers.WhisperTokenizer(vocab=held["vocab"], merges=[tuple(pair) for pair in held["merges"]])
    made.add_special_tokens({"additional_special_tokens": SPECIAL})
    return made


@cache
def spell(token: str) -> int:
    """The number of a special token."""
    return tokenizer().convert_tokens_to_ids(token)


def tokens() -> dict[str, int]:
    """The special tokens that configs name."""
    ends = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"), spell("<|endoftext|>"))
    return ends | {"decoder_start_token_id": spell("<|startoftranscript|>")}


def _make(name: str, ending: str, seed: int = 0) -> Any:
    """A tiny model that hears a wave; the encoder of SEW joins two frames."""
    kind, more = ENCODERS.get(name, "SEW"), {"squeeze_factor": 2} if name == "sew" else {}
    torch.manual_seed(seed)
    config = getattr(transformers, f"{kind}Config")(**ENCODER, **more)
    return getattr(transformers, kind + ending)(config)


def _save(folder: Path, model: Any) -> str:
    model.save_pretrained(folder)
    transformers.Wav2Vec2FeatureExtractor(return_attention_mask=False).save_pretrained(folder)
    return str(folder)


def encoder(folder: Path, name: str) -> str:
    """A tiny model that transcribes without a decoder."""
    return _save(folder, _make(name, "Model" if name in ("hubert", "unispeech-sat") else "ForCTC"))


VOCABULARY = ("<pad>", "<s>", "</s>", "<unk>", "|", "a", "h", "T")
"""Of a CTC head: the blank first, and ``|`` between words."""


def ctc(folder: Path, name: str = "wav2vec2", *, seed: int = 0, spread: float = 0.3) -> str:
    """A tiny model with a CTC head and a vocabulary of letters, random enough to read something."""
    model = _make(name, "ForCTC", seed)
    for weights in model.parameters():
        if weights.ndim > 1:
            torch.nn.init.normal_(weights, std=spread)
    letters(folder)
    return _save(folder, model)


def letters(folder: Path) -> None:
    """The vocabulary of letters, as a tokenizer of a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "vocab.json"
    file.write_text(json.dumps({letter: number for number, letter in enumerate(VOCABULARY)}), "utf-8")
    transformers.Wav2Vec2CTCTokenizer(str(file)).save_pretrained(folder)


def extract(folder: str | Path, path: Path):
    """What the feature extractor of a folder makes of a sound."""
    samples, rate = soundfile.read(path, dtype="float32")
    extractor = transformers.AutoFeatureExtractor.from_pretrained(folder)
    return extractor(samples, sampling_rate=rate, return_tensors="pt")


def noise(path: Path) -> Path:
    """A file of two seconds in which something is different at each moment."""
    soundfile.write(path, 0.1 * np.random.default_rng(0).standard_normal(32000), 16000)
    return path


def sound(path: Path, seconds: float = 1.0, rate: int = 16000, channels: int = 1, **how) -> Path:
    """A sound file: a tone that rises, with a pause in its middle."""
    time = np.arange(round(seconds * rate)) / rate
    wave = 0.4 * np.sin(2 * np.pi * (200 + 300 * time / max(seconds, 1e-9)) * time)
    wave[(0.4 * seconds < time) & (time < 0.6 * seconds)] = 0
    soundfile.write(path, np.stack([wave] * channels, -1), rate, **how)
    return path
