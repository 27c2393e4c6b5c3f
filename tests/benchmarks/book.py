"""What measuring a long text costs as a user runs it: whole processes, from the command to the files.

    python -m tests.benchmarks.book BOOK.txt --tokens 2048 8192 --threads 1 2 --shapes gpt2 llama

``attnscope stats --file BOOK --max-tokens N -m MODEL --pooled maps.npz``, with everything that it prints by
default, against the script that reads the same text with the same model once (AutoModel, sdpa) and looks at
nothing, on the same threads. The models are random: GPT-2-small-sized layers, and Llama-style ones whose
32 heads of size 32 share 8 heads of keys; the tokenizer is trained on the book. The two take turns; each
ratio is the median over the rounds. The seconds in brackets are those of the script without its pass.
"""

import tempfile
from functools import partial
from pathlib import Path

from tests.benchmarks.measure_heads import build
from tests.benchmarks.turns import medians, options, process, take_turns

SCRIPT = """
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


def save(folder: Path, shape: str, layers: int, longest: int, book: Path) -> None:
    """A random model of the shape, with a byte-level tokenizer of at most 30,000 tokens of the book."""
    from tokenizers import ByteLevelBPETokenizer
    from transformers import PreTrainedTokenizerFast

    trained = ByteLevelBPETokenizer()
    trained.train([str(book)], vocab_size=30000, show_progress=False)
    PreTrainedTokenizerFast(tokenizer_object=trained._tokenizer).save_pretrained(folder)
    build(shape, longest, layers, size=32).save_pretrained(folder)


def seconds(arguments: list[str], threads: int, cache: Path) -> float:
    """The time of one process, with no pass kept of an earlier one."""
    return process(arguments, cache, OMP_NUM_THREADS=str(threads))[0]


def main() -> None:
    numbers = {"tokens": [2048, 8192], "threads": [1, 2], "layers": 12, "rounds": 3}
    parser = options(__doc__, **numbers)
    parser.add_argument("book", type=Path)
    parser.add_argument("--shapes", nargs="+", default=["gpt2", "llama"], choices=["gpt2", "llama"])
    asked = parser.parse_args()
    print(f"{'model':8}{'tokens':>8}{'threads':>9}{'script, s':>18}{'stats, s':>10}{'ratio':>8}", flush=True)
    for shape in asked.shapes:
        with tempfile.TemporaryDirectory() as name:
            folder, cache = Path(name) / "model", Path(name) / "cache"
            save(folder, shape, asked.layers, max(asked.tokens), asked.book)
            command = ["-m", "attnscope", "stats", "--file", str(asked.book), "-m", str(folder)]
            command += ["--max-tokens"]
            seconds([*command, "512"], 1, cache)  # compiles the innermost step, which is kept
            for tokens in asked.tokens:
                script = ["-c", SCRIPT, str(folder), str(asked.book)]
                stats = [*command, str(tokens), "--pooled", f"{name}/maps.npz"]
                for threads in asked.threads:
                    bare = seconds([*script, "1"], threads, cache)
                    both = {"script": [*script, str(tokens)], "stats": stats}
                    runs = {name: partial(seconds, each, threads, cache) for name, each in both.items()}
                    pairs = zip(*take_turns(runs, asked.rounds, warm=0).values(), strict=True)
                    plain, ours, ratio = medians((a, b, b / a) for a, b in pairs)
                    taken = f"{plain:.1f} ({bare:.1f})"
                    print(f"{shape:8}{tokens:8}{threads:9}{taken:>18}{ours:10.1f}{ratio:8.2f}", flush=True)


if __name__ == "__main__":
    main()
