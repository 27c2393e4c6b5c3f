"""All speeds that are watched, beside the last recorded: ``python -m tests.benchmarks.ratios [--quick]``.

Each is the time of attnscope over that of something that nobody can avoid, or that people write today, in
turns in one run; less is better. A line says which one is a tenth worse than ``ratios.json`` has it;
``--record`` writes what was found there. Nothing fails: a busy machine may be all that it is. Whole processes
are compared by processor time, but for what several threads or processes share. ``--quick`` has what starts
a process alone, and takes a quarter of a minute; all of it takes minutes.
"""

import argparse
import json
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from pydoc_data.topics import topics

from tests.benchmarks import book, corpus, startup, turns
from tests.benchmarks.turns import cost, ratio, take_turns
from tests.models.folders import minilm

RECORDED = Path(__file__).with_suffix(".json")
WORSE = 1.1
TORCH = ["-c", "import torch"]
SHOW = ["-m", "attnscope", "show", startup.TEXT]


def paired(ours: Callable[[], float], theirs: Callable[[], float], rounds: int) -> float:
    """The median ratio of two times that are taken in turns."""
    return ratio(take_turns({"ours": ours, "theirs": theirs}, rounds), "ours", "theirs")


def process(arguments: list[str], folder: str, *, fresh: bool = False, wall: bool = False) -> float:
    """Processor time of one process, or its wall clock."""
    return turns.process(arguments, Path(folder), fresh=fresh)[0 if wall else 1]


def starts(folder: str, rounds: int) -> Iterator[tuple[str, float]]:
    """What starts a process, to ``import torch``."""
    helped, torch = (partial(process, each, folder) for each in (["-m", "attnscope", "--help"], TORCH))
    yield "--help, to import torch", paired(helped, torch, rounds)
    yield "second look, to import torch", paired(partial(process, SHOW, folder), torch, rounds)
    yield "first look, to import torch", paired(partial(process, SHOW, folder, fresh=True), torch, rounds)


def everything(folder: str, rounds: int) -> Iterator[tuple[str, float]]:
    """The rest: pictures, long texts, a corpus, and a Swin."""
    looks = startup.first_looks(folder)
    png, script = (looks[name] for name in ("the same with -o head.png", startup.RIVAL))
    ours, theirs = partial(process, png, folder, fresh=True), partial(process, script, folder)
    yield "first look, MiniLM as PNG, to the usual script", paired(ours, theirs, rounds)
    yield "Swin of 3,136 patches with figures, to the plain pass", swin(rounds)
    yield from many_texts(rounds)
    yield "export of 157 pictures at 512 tokens, to import torch", pictures(folder)
    for shape, tokens in (("gpt2", 2048), ("llama", 2048), ("gpt2", 8192)):
        yield f"stats of a book, {shape}, {tokens:,} tokens, to the plain script", long_text(shape, tokens)


def write_book(folder: str) -> Path:
    """A text of many words that every Python has."""
    path = Path(folder) / "book.txt"
    path.write_text("\n".join(topics.values()), "utf-8")
    return path


def pictures(folder: str, tokens: int = 512) -> float:
    """144 heads, 12 layers and the whole of a random model, by all processes, once."""
    from transformers import BertConfig, BertModel

    model = Path(folder) / "bert"
    shutil.copytree(minilm(), model, ignore=shutil.ignore_patterns("*.safetensors", "config.json"))
    BertModel(BertConfig(hidden_size=96, intermediate_size=96)).save_pretrained(model)
    asked = ["export", "-f", str(write_book(folder)), "--max-tokens", str(tokens), "-m", str(model)]
    made = process(["-m", "attnscope", *asked, "-o", f"{folder}/pictures"], folder, fresh=True, wall=True)
    assert len(list(Path(folder, "pictures").glob("**/*.png"))) >= 157
    return made / process(TORCH, folder, wall=True)


def long_text(shape: str, tokens: int) -> float:
    """Whole processes on two threads, by the clock."""
    with tempfile.TemporaryDirectory() as name:
        folder, cache, text = Path(name) / "model", Path(name) / "cache", write_book(name)
        book.save(folder, shape, 12, tokens, text)
        script = ["-c", book.SCRIPT, str(folder), str(text), str(tokens)]
        stats = ["-m", "attnscope", "stats", "--file", str(text), "--max-tokens", str(tokens)]
        stats += ["-m", str(folder), "--pooled", f"{name}/maps.npz"]
        return paired(*(partial(book.seconds, each, 2, cache) for each in (stats, script)), rounds=1)


def many_texts(rounds: int) -> Iterator[tuple[str, float]]:
    """500 sentences through MiniLM, on two threads."""
    import torch

    from attnscope.models import load

    torch.set_num_threads(2)
    model = load(minilm())
    found = re.split(r"(?<=[.?!])\s+", " ".join(" ".join(topics.values()).split()))
    sentences = [sentence for sentence in found if 20 < len(sentence) < 300][:500]
    batches = partial(cost, corpus.batched(model, sentences))
    ours = partial(cost, partial(corpus.measure, model, sentences))
    loop = partial(cost, partial(corpus.by_loop, model, sentences))
    yield "500 sentences, MiniLM, to the eager loop", paired(ours, loop, rounds)
    yield "500 sentences, MiniLM, to the bare pass in batches", paired(ours, batches, rounds)


def swin(rounds: int) -> float:
    """All figures of a random Swin of full size, on one thread."""
    import torch
    from transformers import SwinConfig, SwinModel

    from attnscope.capture import recording
    from attnscope.measures import Measurement

    torch.set_num_threads(1)
    model, picture = SwinModel(SwinConfig()).eval(), torch.rand(1, 3, 224, 224)

    @torch.inference_mode()
    def figures() -> None:
        with recording(model, [Measurement()], warn=False):
            model(picture)

    plain = torch.inference_mode()(partial(model, picture))
    return paired(partial(cost, figures), partial(cost, plain), rounds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="what starts a process alone")
    parser.add_argument("--record", action="store_true", help="write the ratios down")
    parser.add_argument("--rounds", type=int, default=2)
    asked = parser.parse_args()
    recorded = json.loads(RECORDED.read_text("utf-8")) if RECORDED.exists() else {}
    print(f"{'':60}{'now':>8}{'before':>8}", flush=True)
    worse = []
    with tempfile.TemporaryDirectory() as folder:
        for suite in (starts,) if asked.quick else (starts, everything):
            for name, found in suite(folder, asked.rounds):
                before = recorded.get(name)
                late = before is not None and found > before * WORSE
                worse += [name] if late else []
                told = f"{'' if before is None else f'{before:.2f}':>8}{'  a tenth worse' if late else ''}"
                print(f"{name:60}{found:8.2f}{told}", flush=True)
                if asked.record:
                    recorded[name] = round(found, 3)
                    RECORDED.write_text(json.dumps(recorded, indent=2) + "\n", "utf-8")
    print(f"a tenth worse than recorded: {'; '.join(worse) or 'nothing'}")


if __name__ == "__main__":
    main()
