"""All monitored speeds, next to the last recorded ones: ``python -m tests.benchmarks.ratios [--quick]``.

Each is the time of attnscope relative to an unavoidable step, or to the usual script, in alternating rounds
of one run; less is better. A line marks each ratio that is 10 % worse than in ``ratios.json``; ``--record``
writes the new ratios there. Nothing fails, because a busy machine may be the only cause. Whole processes
are compared by processor time, except where several threads or processes share the work. ``--quick``
measures only the start of processes, in a quarter of a minute; all of it takes minutes.
"""

import argparse
import json
import os
import random
import re
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

from attnscope.storage.cache import PASSES_FOLDER
from tests.models.folders import minilm

RECORDED = Path(__file__).with_suffix(".json")
WORSE = 1.1
TEXT = "The cat sat on the mat because it was tired."
TORCH = ["-c", "import torch"]
SHOW = ["-m", "attnscope", "show", TEXT]
PICTURE = """
import sys
import matplotlib.pyplot as plt
import torch
from transformers import AutoModel, AutoTokenizer
folder, text, out = sys.argv[1:]
tokenizer = AutoTokenizer.from_pretrained(folder)
model = AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
inputs = tokenizer(text, return_tensors="pt")
with torch.no_grad():
    attention = model(**inputs, output_attentions=True).attentions[2][0, 5]
labels = tokenizer.convert_ids_to_tokens(inputs["input_ids"][0])
plt.imshow(attention)
plt.xticks(range(len(labels)), labels, rotation=90)
plt.yticks(range(len(labels)), labels)
plt.savefig(out)
"""
"""The usual script that draws one head."""

READ = """
import sys
import torch
from transformers import AutoModel, AutoTokenizer
folder, book, tokens = sys.argv[1:]
tokenizer = AutoTokenizer.from_pretrained(folder)
model = AutoModel.from_pretrained(folder).eval()
text = open(book, encoding="utf-8").read()
inputs = tokenizer(text, return_tensors="pt", truncation=True, max_length=int(tokens))
assert inputs["input_ids"].shape[1] == int(tokens), "the book is shorter than that"
with torch.inference_mode():
    model(**inputs, use_cache=False)
"""
"""A script that runs the model on a text once, and measures nothing."""


def cost(work: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> float:
    """The seconds that some work in this process takes; by ``time.process_time``, of its processor."""
    start = clock()
    work()
    return clock() - start


def process(arguments: Sequence[str], folder: str, *, fresh=False, wall=False, threads: int = 0) -> float:
    """Processor time of one process, or its wall-clock time, with the bytecode of an installed package.

    ``fresh``: without cached passes, so that the model runs.
    """
    kept = {"PYTHONPYCACHEPREFIX": f"{folder}/bytecode", "ATTNSCOPE_CACHE": folder}
    given = os.environ | kept | ({"OMP_NUM_THREADS": str(threads)} if threads else {})
    given.pop("PYTHONDONTWRITEBYTECODE", None)
    if fresh:
        shutil.rmtree(Path(folder) / PASSES_FOLDER, ignore_errors=True)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, *arguments]
    taken = cost(lambda: subprocess.run(command, check=True, capture_output=True, env=given))
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return taken if wall else after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def paired(ours: Callable[[], float], theirs: Callable[[], float], rounds: int) -> float:
    """The median ratio of two times measured in alternation, so that a busy machine slows both; the first
    round is not counted."""
    pairs = [(ours(), theirs()) for _ in range(1 + rounds)]
    return statistics.median(mine / other for mine, other in pairs[1:])


def starts(folder: str, rounds: int) -> Iterator[tuple[str, float]]:
    """The start of a process, relative to ``import torch``."""
    helped, torch = (partial(process, each, folder) for each in (["-m", "attnscope", "--help"], TORCH))
    yield "--help, relative to import torch", paired(helped, torch, rounds)
    yield "cached pass, relative to import torch", paired(partial(process, SHOW, folder), torch, rounds)
    yield (
        "first pass, relative to import torch",
        paired(partial(process, SHOW, folder, fresh=True), torch, rounds),
    )


def everything(folder: str, rounds: int) -> Iterator[tuple[str, float]]:
    """The rest: pictures, long texts, a corpus, and a Swin."""
    png = [*SHOW, "-m", minilm(), "--head", "L2H5", "-o", f"{folder}/head.png"]
    script = ["-c", PICTURE, minilm(), TEXT, f"{folder}/script.png"]
    ours, theirs = partial(process, png, folder, fresh=True), partial(process, script, folder)
    yield "first pass, MiniLM as PNG, relative to the usual script", paired(ours, theirs, rounds)
    yield "Swin of 3,136 patches, measured, relative to the plain pass", swin(rounds)
    yield "why in the last layer of gpt2, 128 tokens, relative to logits", why(folder, rounds)
    for tokens in (512, 4_096):
        for name, made in (("gated delta rule", delta_rule), ("Mamba layer", state_space)):
            yield f"a {name} of {tokens:,} tokens as matrices, to its pass", matrices(made, tokens)
    yield from many_texts(rounds)
    commands = ("", "stats"), ("a shard of ", "stats", "--shard", "1/2"), ("examples of ", "examples")
    for name, *asked in commands:
        yield f"memory of {name}50,000 texts, relative to 5,000", flat(*asked)
    yield "time of a model predicted from two smaller ones, relative to its own", predicted(folder)
    yield "export of 157 pictures, relative to import torch", pictures(folder)
    for shape, tokens in (("gpt2", 2048), ("llama", 2048), ("gpt2", 8192)):
        yield (
            f"stats of a book, {shape}, {tokens:,} tokens, relative to the plain script",
            long_text(shape, tokens),
        )


def write_book(folder: str) -> Path:
    """A long text that comes with Python."""
    path = Path(folder) / "book.txt"
    path.write_text("\n".join(topics.values()), "utf-8")
    return path


def pictures(folder: str, tokens: int = 512) -> float:
    """Pictures of 144 heads, 12 layers and the whole of a random model, by all processes, once."""
    from transformers import BertConfig, BertModel

    model = Path(folder) / "bert"
    shutil.copytree(minilm(), model, ignore=shutil.ignore_patterns("*.safetensors", "config.json"))
    BertModel(BertConfig(hidden_size=96, intermediate_size=96)).save_pretrained(model)
    asked = ["export", "-f", str(write_book(folder)), "--max-tokens", str(tokens), "-m", str(model)]
    made = process(["-m", "attnscope", *asked, "-o", f"{folder}/pictures"], folder, fresh=True, wall=True)
    assert len(list(Path(folder, "pictures").glob("**/*.png"))) >= 157
    return made / process(TORCH, folder, wall=True)


def build(shape: str, tokens: int):
    """A random model of twelve layers, long enough for the text; the Llama's 32 small heads share 8 key-value
    heads."""
    import torch
    from transformers import GPT2Config, GPT2Model, LlamaConfig, LlamaModel

    torch.manual_seed(0)
    if shape == "gpt2":
        return GPT2Model(GPT2Config(n_positions=tokens))
    sizes = {"hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 12}
    sizes |= {"num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 32000}
    return LlamaModel(LlamaConfig(**sizes, max_position_embeddings=tokens))


def long_text(shape: str, tokens: int) -> float:
    """Wall-clock time of whole processes on two threads; the tokenizer is trained on the text."""
    from tokenizers import ByteLevelBPETokenizer
    from transformers import PreTrainedTokenizerFast

    with tempfile.TemporaryDirectory() as name:
        folder, text = f"{name}/model", str(write_book(name))
        trained = ByteLevelBPETokenizer()
        trained.train([text], vocab_size=30000, show_progress=False)
        PreTrainedTokenizerFast(tokenizer_object=trained._tokenizer).save_pretrained(folder)
        build(shape, tokens).save_pretrained(folder)
        stats = ["-m", "attnscope", "stats", "--file", text, "--max-tokens", str(tokens)]
        ways = [*stats, "-m", folder, "--pooled", f"{name}/maps.npz"], ["-c", READ, folder, text, str(tokens)]
        timed = (partial(process, way, f"{name}/cache", fresh=True, wall=True, threads=2) for way in ways)
        return paired(*timed, rounds=1)


def many_texts(rounds: int) -> Iterator[tuple[str, float]]:
    """2,000 sentences through MiniLM, on two threads; the plain model runs on the same batches."""
    import torch

    from attnscope.models import load
    from attnscope.models.inputs import batches
    from attnscope.questions.corpus_stats import corpus_stats
    from attnscope.questions.examples import corpus_examples
    from attnscope.storage.corpus import ListedTexts
    from tests.benchmarks.loop import by_loop

    torch.set_num_threads(2)
    model = load(minilm())
    found = re.split(r"(?<=[.?!])\s+", " ".join(" ".join(topics.values()).split()))
    sentences = [sentence for sentence in found if 20 < len(sentence) < 300][:2000]
    made = [batch.prepared.inputs for batch in batches(model.prepare_all([(one,) for one in sentences]))]

    @torch.inference_mode()
    def batched() -> None:
        for inputs in made:
            model.module(**inputs)

    ours = partial(cost, lambda: corpus_stats(model, ListedTexts(sentences)))
    loop = partial(cost, partial(by_loop, model.name, sentences))
    looped = by_loop(model.name, sentences)
    for head in corpus_stats(model, ListedTexts(sentences)).heads:  # the loop does the same work
        for name in looped.keys() & head.scores.keys():
            value, even = looped[name][:, head.site.layer, head.head]
            assert abs(value - head.scores[name].value) + abs(even - head.scores[name].baseline) < 1e-3
    yield "2,000 sentences, MiniLM, relative to the eager loop", paired(ours, loop, rounds)
    bare = partial(cost, batched)
    yield "2,000 sentences, MiniLM, relative to the plain batched pass", paired(ours, bare, rounds)
    kept = partial(cost, lambda: corpus_examples(model, ListedTexts(sentences)))
    yield "examples of 2,000 sentences, MiniLM, relative to their scores", paired(kept, ours, rounds)


PEAK = """
import re
import sys
from attnscope.cli import main
try:
    main()
finally:
    print(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1], file=sys.stderr)
"""
"""A command that says what it has held at most since it was started; ru_maxrss begins before that."""


def flat(*asked: str, few: int = 5_000, times: int = 10) -> float:
    """The peak memory of processes for few texts and for more, each without that for two, as a ratio."""
    from tests.models.folders import gpt2

    draw, words, peaks = random.Random(0), TEXT.lower().rstrip(".").split(), []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = gpt2(folder / "tiny", n_embd=8, n_layer=1, n_head=1, n_positions=1024)
        for count in (2, few, times * few):
            path, sums = (str(folder / f"{count}.{kind}") for kind in ("txt", "json"))
            texts = (" ".join(draw.choices(words, k=draw.randint(5, 100))) for _ in range(count))
            Path(path).write_text("\n".join(texts), "utf-8")
            run = [sys.executable, "-c", PEAK, *asked, "--texts", path, "-m", model, "--checkpoint", sums]
            done = subprocess.run(run, capture_output=True, check=True, text=True)
            peaks.append(int(done.stderr.split()[-1]))
    return (peaks[2] - peaks[0]) / (peaks[1] - peaks[0])


def predicted(folder: str) -> float:
    """The time per token of a model on a line through those of two smaller ones, relative to the measured."""
    import torch

    from attnscope.models import load
    from attnscope.questions.corpus_stats import corpus_stats
    from attnscope.storage.corpus import ListedTexts
    from tests.models.folders import gpt2

    torch.set_num_threads(1)
    draw, words, found = random.Random(0), TEXT.lower().rstrip(".").split(), []
    texts = ListedTexts([" ".join(draw.choices(words, k=draw.randint(5, 60))) for _ in range(200)])
    for layers, width in ((6, 384), (8, 640), (12, 1024)):
        place = Path(folder) / f"gpt2-{width}"
        model = load(gpt2(place, n_embd=width, n_layer=layers, n_head=width // 64, n_positions=512))
        corpus_stats(model, ListedTexts(texts.texts[:20]))
        begun = time.process_time()
        corpus_stats(model, texts)
        found.append((12 * layers * width**2, time.process_time() - begun))  # without embeddings
    (one, first), (other, second), (weights, measured) = found
    slope = (second - first) / (other - one)
    return (first + slope * (weights - one)) / measured


def swin(rounds: int) -> float:
    """All scores of a random full-size Swin, on one thread."""
    import torch
    from transformers import SwinConfig, SwinModel

    from attnscope.capture import recording
    from attnscope.measures import Measurement

    torch.set_num_threads(1)
    model, picture = SwinModel(SwinConfig()).eval(), torch.rand(1, 3, 224, 224)

    @torch.inference_mode()
    def scores() -> None:
        with recording(model, [Measurement()], warn=False):
            model(picture)

    plain = torch.inference_mode()(partial(model, picture))
    return paired(partial(cost, scores), partial(cost, plain), rounds)


def why(folder: str, rounds: int) -> float:
    """The terms of the last row's score in GPT-2's last layer, random weights, on one thread."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    from attnscope.attention import Head
    from attnscope.models import load
    from attnscope.questions.find import parse_questions
    from attnscope.questions.logits import direct_effects
    from attnscope.questions.why import explain_head

    torch.set_num_threads(1)
    place = Path(folder, "gpt2-why")
    GPT2LMHeadModel(GPT2Config(vocab_size=8192, bos_token_id=0, eos_token_id=0)).save_pretrained(place)
    load("own").reader.tokenizer.save(str(place / "tokenizer.json"))
    model = load(place, predicting=True)
    prepared = model.prepare_tensors({"input_ids": torch.arange(100, 228)[None]})
    (cells,), head = parse_questions("127 -> 5"), Head(11, 3)
    spent = partial(partial, cost, clock=time.process_time)
    ours, theirs = (
        lambda: explain_head(model, prepared, cells, head),
        lambda: direct_effects(model, prepared, None, None),
    )
    return paired(spent(ours), spent(theirs), rounds)


def delta_rule() -> Any:
    """A layer of four heads of size 128."""
    from transformers import Qwen3NextConfig, Qwen3NextModel

    heads = {"linear_num_key_heads": 4, "linear_num_value_heads": 4}
    sizes = {"hidden_size": 256, "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 1}
    experts = {"num_experts": 2, "num_experts_per_tok": 1, "vocab_size": 99}
    config = Qwen3NextConfig(**sizes, **heads, **experts, layer_types=["linear_attention"])
    return Qwen3NextModel._from_config(config)


def state_space() -> Any:
    """A layer of Mamba, of 1,536 channels."""
    from transformers import MambaConfig, MambaModel

    return MambaModel._from_config(MambaConfig(num_hidden_layers=1, vocab_size=99))


def matrices(made: Callable[[], Any], tokens: int) -> float:
    """The processor time of a layer with all its rows read, on one thread."""
    import torch

    from attnscope.capture import Coarsen, recording
    from attnscope.capture.observers import SharedRows
    from attnscope.questions.selection import Selection

    torch.set_num_threads(1)
    model, ids = made().eval(), torch.zeros(1, tokens, dtype=torch.long)
    maps: Coarsen = Selection().coarsen(48)

    @torch.inference_mode()
    def run(mixers: bool) -> float:
        start = time.process_time()
        with recording(model, [SharedRows([maps])] * mixers, warn=False, mixers=mixers):
            model(input_ids=ids, use_cache=False)
        return time.process_time() - start

    run(False)
    return run(True) / run(False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="only the start of processes")
    parser.add_argument("--record", action="store_true", help="write the ratios to ratios.json")
    parser.add_argument("--rounds", type=int, default=2)
    asked = parser.parse_args()
    recorded = json.loads(RECORDED.read_text("utf-8")) if RECORDED.exists() else {}
    print(f"{'':70}{'now':>8}{'before':>8}", flush=True)
    worse = []
    with tempfile.TemporaryDirectory() as folder:
        for suite in (starts,) if asked.quick else (starts, everything):
            for name, found in suite(folder, asked.rounds):
                before = recorded.get(name)
                late = before is not None and found > before * WORSE
                worse += [name] if late else []
                told = f"{'' if before is None else f'{before:.2f}':>8}{'  10 % worse' if late else ''}"
                print(f"{name:70}{found:8.2f}{told}", flush=True)
                if asked.record:
                    recorded[name] = round(found, 3)
                    RECORDED.write_text(json.dumps(recorded, indent=2) + "\n", "utf-8")
    print(f"10 % worse than recorded: {'; '.join(worse) or 'nothing'}")


if __name__ == "__main__":
    main()
