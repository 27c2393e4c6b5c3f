"""Train a small encoder-decoder to write dates in another way, and say what its cross attention does.

``python -m tests.tools.dates FOLDER`` takes a minute on one core. The model reads ``7 march 1987`` and writes
``07-03-1987``, letter by letter and in the same order, so that some of its heads go from left to right.
It then says which, on fifty dates that the model never saw, and what ``attnscope stats`` says of one.
"""

import argparse
import random
import subprocess
import sys
from pathlib import Path
from statistics import mean

import torch
import transformers
from tokenizers import Regex, Tokenizer, models, pre_tokenizers, processors

from attnscope.analysis.selection import Selection
from attnscope.analysis.stats import stats
from attnscope.figures import Figure
from attnscope.models import load

MONTHS = [
    "january", "february", "march", "april", "may", "june", "july", "august", "september", "october",
    "november", "december",
]  # fmt: skip
LETTERS = "0123456789- abcdefghijklmnopqrstuvwxyz"
SPECIAL = ["<pad>", "<s>", "</s>", "<unk>"]


def date(chosen: random.Random) -> tuple[str, str]:
    """A date in words, and in numbers."""
    day, month, year = chosen.randint(1, 28), chosen.randint(1, 12), chosen.randint(1000, 2999)
    return f"{day} {MONTHS[month - 1]} {year}", f"{day:02}-{month:02}-{year}"


def build_tokenizer() -> transformers.PreTrainedTokenizerFast:
    """A token a letter."""
    tokenizer = Tokenizer(
        models.WordLevel({each: number for number, each in enumerate([*SPECIAL, *LETTERS])}, "<unk>")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    tokenizer.post_processor = processors.TemplateProcessing("$A </s>", None, [("</s>", 2)])
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    )


def train(steps: int, seed: int) -> tuple[transformers.BartForConditionalGeneration, float]:
    """The model, and the share of new dates that it writes right."""
    torch.manual_seed(seed)
    chosen, read = random.Random(seed), build_tokenizer()
    config = transformers.BartConfig(
        vocab_size=len(read), d_model=64, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
        decoder_attention_heads=4, encoder_ffn_dim=128, decoder_ffn_dim=128, max_position_embeddings=32,
        pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=2, forced_eos_token_id=None,
        dropout=0.0,
    )  # fmt: skip
    model = transformers.BartForConditionalGeneration(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=steps)
    for step in range(steps):
        sources, targets = zip(*(date(chosen) for _ in range(64)), strict=True)
        inputs = read(list(sources), return_tensors="pt", padding=True)
        labels = read(list(targets), return_tensors="pt", padding=True).input_ids
        loss = model(inputs.input_ids, attention_mask=inputs.attention_mask, labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if step % 100 == 0:
            print(f"step {step:,}: loss {loss.item():.3f}", flush=True)
    sources, targets = zip(*(date(chosen) for _ in range(200)), strict=True)
    inputs = read(list(sources), return_tensors="pt", padding=True)
    model.eval()
    written = model.generate(inputs.input_ids, attention_mask=inputs.attention_mask, max_new_tokens=12)
    said = [text.replace(" ", "") for text in read.batch_decode(written, skip_special_tokens=True)]
    return model, sum(one == other for one, other in zip(said, targets, strict=True)) / len(targets)


def main() -> None:
    """Train, save, and ask."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    model, right = train(asked.steps, asked.seed)
    print(f"{right:.0%} of 200 new dates are right")
    model.save_pretrained(asked.folder)
    build_tokenizer().save_pretrained(asked.folder)
    print_monotonic(str(asked.folder), asked.seed + 1)
    command = [sys.executable, "-m", "attnscope", "stats", "17 september 1987", "17-09-1987"]
    command += ["-m", str(asked.folder), "--kind", "cross", "--sort", "monotonic"]
    subprocess.run(command, check=True)


def print_monotonic(folder: str, seed: int) -> None:
    """How often each head's largest key is at or after the one before, on fifty dates."""
    chosen, model, cross = random.Random(seed), load(folder), Selection(kind="cross")
    found: dict[str, list[Figure]] = {}
    for _ in range(50):
        for head in stats(model, model.prepare(*date(chosen)), cross, names=("monotonic",)).heads:
            found.setdefault(head.name, []).append(head.figures["monotonic"])
    for name, figures in sorted(found.items(), key=lambda each: -sum(figure.value for figure in each[1])):
        value, baseline = (mean(getattr(each, part) for each in figures) for part in ("value", "baseline"))
        print(f"{name}: monotonic in {value:.2f} of the rows (baseline {baseline:.2f})")


if __name__ == "__main__":
    main()
