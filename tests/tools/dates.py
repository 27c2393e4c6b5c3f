"""Train a small encoder-decoder to write dates in another way, and say what its cross attention does.

``python -m tests.tools.dates FOLDER`` takes a minute on one core. The model reads ``7 m a r c h 1 9 8 7`` and
writes ``0 7 - 0 3 - 1 9 8 7``, letter by letter and in the same order, so that some of its heads go from left
to right. It then says which, on fifty dates that the model never saw, and what ``attnscope stats`` says of
one. Which letter stands for which is known: ``attnscope find --gold`` says how well each head aligns two
hundred dates, and a computation of its own, from the model's eager report, must give the same error rates. A
row is asked for the letter that it has read, and for the next one, which it is about to write.
"""

import argparse
import json
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path
from statistics import mean

import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from attnscope.figures import Figure
from attnscope.models import load
from attnscope.questions.selection import Selection
from attnscope.questions.stats import measure_heads

MONTHS = [
    "january", "february", "march", "april", "may", "june", "july", "august", "september", "october",
    "november", "december",
]  # fmt: skip
LETTERS = "0123456789-abcdefghijklmnopqrstuvwxyz"
SPECIAL = ["<pad>", "<s>", "</s>", "<unk>"]


def date(chosen: random.Random) -> tuple[str, str]:
    """A date in words, and in numbers, letters apart."""
    day, month, year = chosen.randint(1, 28), chosen.randint(1, 12), chosen.randint(1000, 2999)
    return " ".join(f"{day}{MONTHS[month - 1]}{year}"), " ".join(f"{day:02}-{month:02}-{year}")


def links(source: str, target: str) -> list[tuple[int, int, bool]]:
    """Which letters stand for which: source, target, and whether it is sure.

    A digit of the day or the year is that digit; a month's digits may be any of its letters, and a leading 0
    of the day its digit.
    """
    read, written = source.split(), target.split()
    day = sum(letter.isdigit() for letter in read[:2])
    found = [(place, 2 - day + place, True) for place in range(day)]
    found += [(0, 0, False)] if day == 1 else []
    found += [(len(read) - back, len(written) - back, True) for back in range(4, 0, -1)]
    return found + [(place, digit, False) for place in range(day, len(read) - 4) for digit in (3, 4)]


def build_tokenizer() -> transformers.PreTrainedTokenizerFast:
    """A token a letter."""
    tokenizer = Tokenizer(
        models.WordLevel({each: number for number, each in enumerate([*SPECIAL, *LETTERS])}, "<unk>")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
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
    said = read.batch_decode(written, skip_special_tokens=True)
    return model, sum(one == other for one, other in zip(said, targets, strict=True)) / len(targets)


def main() -> None:
    """Train, save, and ask."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, default=600, help="0: ask a folder that is there")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    if asked.steps:
        model, right = train(asked.steps, asked.seed)
        print(f"{right:.0%} of 200 new dates are right")
        model.save_pretrained(asked.folder)
        build_tokenizer().save_pretrained(asked.folder)
    print_monotonic(str(asked.folder), asked.seed + 1)
    command = [
        sys.executable,
        "-m",
        "attnscope",
        "stats",
        "1 7 s e p t e m b e r 1 9 8 7",
        "1 7 - 0 9 - 1 9 8 7",
    ]
    command += ["-m", str(asked.folder), "--kind", "cross", "--sort", "monotonic"]
    subprocess.run(command, check=True)
    for ahead, what in ((0, "that a row has read"), (1, "that a row is about to write")):
        print(f"\nletters {what}:")
        compare_alignments(asked.folder, asked.seed + 2, ahead)


def compare_alignments(folder: Path, seed: int, ahead: int) -> None:
    """The error rates of all heads by command and by hand."""
    chosen = random.Random(seed)
    pairs = [date(chosen) for _ in range(200)]
    known = [[(a, b - ahead, sure) for a, b, sure in links(*pair) if b >= ahead] for pair in pairs]
    texts, file = folder / "dates.txt", folder / "links.txt"
    texts.write_text("".join(f"{source} ||| {target}\n" for source, target in pairs))
    file.write_text(
        "".join(" ".join(f"{a}{'-' if sure else '?'}{b}" for a, b, sure in each) + "\n" for each in known)
    )
    command = [sys.executable, "-m", "attnscope", "find", "--gold", str(texts), "--alignments", str(file)]
    command += ["-m", str(folder)]
    subprocess.run([*command, "--top", "3"], check=True)
    found = json.loads(
        subprocess.run([*command, "--json"], check=True, capture_output=True, text=True).stdout
    )
    rates = error_rates(folder, pairs, known)
    heads = found["labels"][0]["heads"]
    farthest = max(abs(head["aer"] - rates[head["layer"], head["head"]]) for head in heads)
    print(f"by hand, the error rates of {len(heads)} heads differ by {farthest:.1e} at most")


def error_rates(
    folder: Path, pairs: list[tuple[str, str]], known: list[list[tuple[int, int, bool]]]
) -> dict[tuple[int, int], float]:
    """Och & Ney's alignment error rate of each head, from the model's own report, one letter at a time."""
    read = build_tokenizer()
    model = transformers.BartForConditionalGeneration.from_pretrained(
        folder, attn_implementation="eager"
    ).eval()
    agreed: Counter[tuple[int, int]] = Counter()
    counted = 0
    for (source, target), links in zip(pairs, known, strict=True):
        inputs = read(source, return_tensors="pt").input_ids
        fed = torch.tensor([[model.config.decoder_start_token_id, *read(target).input_ids[:-1]]])
        with torch.no_grad():
            shown = model(inputs, decoder_input_ids=fed, output_attentions=True).cross_attentions
        every, sure = {link[:2] for link in links}, {link[:2] for link in links if link[2]}
        counted += len(target.split()) + len(sure)
        for layer, weights in enumerate(shown):
            for head, rows in enumerate(weights[0].numpy()):
                for letter in range(len(target.split())):
                    said = int(rows[letter + 1, : len(source.split())].argmax()), letter
                    agreed[layer, head] += (said in every) + (said in sure)
    return {head: 1 - count / counted for head, count in agreed.items()}


def print_monotonic(folder: str, seed: int) -> None:
    """How often each head's largest key is at or after the one before, on fifty dates."""
    chosen, model, cross = random.Random(seed), load(folder), Selection(kind="cross")
    found: dict[str, list[Figure]] = {}
    for _ in range(50):
        for head in measure_heads(model, model.prepare(*date(chosen)), cross, names=("monotonic",)).heads:
            found.setdefault(head.name, []).append(head.figures["monotonic"])
    for name, figures in sorted(found.items(), key=lambda each: -sum(figure.value for figure in each[1])):
        value, baseline = (mean(getattr(each, part) for each in figures) for part in ("value", "baseline"))
        print(f"{name}: monotonic in {value:.2f} of the rows (baseline {baseline:.2f})")


if __name__ == "__main__":
    main()
