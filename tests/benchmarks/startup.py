"""How long a look takes: ``python -m tests.benchmarks.startup [--first] [--repeats N]``.

Everything is timed in one run, in turns, as whole processes, and printed as a ratio to
``python -c "import torch"``, which nobody can avoid. The rival is the script that people write today:
AutoModel with eager attention, one ``imshow``, ``savefig``. It reads the MiniLM that a test dependency
carries, and so does attnscope for the comparison with it; medians over the repeats. A second look is at the
pass that another one kept: all of them take a minute or two. First looks run the model, and are timed with
``--first``, which takes some minutes more.
"""

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.models.folders import minilm

TEXT = "The cat sat on the mat because it was tired."

SECOND = "second look:"

SCRIPT = """
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


def commands(folder: str, first: bool) -> dict[str, list[str]]:
    """What is timed, by name."""
    looks = {
        'python -c "import torch"': ["-c", "import torch"],
        "attnscope --help": ["-m", "attnscope", "--help"],
        **{
            f"{SECOND} {' '.join(asked)}": ["-m", "attnscope", asked[0], TEXT, "-m", minilm(), *asked[1:]]
            for asked in (
                ["show"],
                ["show", "--head", "L2H5"],
                ["show", "--head", "L2H5", "--words"],
                ["show", "--hide-special"],
                ["show", "--token", "cat"],
                ["stats"],
                ["show", "--head", "L2H5", "-o", f"{folder}/again.png"],
            )
        },
        f"{SECOND} show, own": ["-m", "attnscope", "show", TEXT],
    }
    return looks | (first_looks(folder) if first else {})


def first_looks(folder: str) -> dict[str, list[str]]:
    """Those that run the model, and their rival."""
    show = ["-m", "attnscope", "show", TEXT]
    return {
        "attnscope show TEXT --head L0H2": [*show, "--head", "L0H2"],
        "attnscope show TEXT": show,
        "AutoModel, eager, imshow, savefig": ["-c", SCRIPT, minilm(), TEXT, f"{folder}/script.png"],
        "attnscope show TEXT -m MiniLM --head L2H5": [*show, "-m", minilm(), "--head", "L2H5"],
        "the same with -o head.png": [*show, "-m", minilm(), "--head", "L2H5", "-o", f"{folder}/head.png"],
    }


def seconds(arguments: list[str], folder: str, second: bool = False) -> tuple[float, float]:
    """Wall clock and processor time of one process, with bytecode as an installed package has it."""
    environment = {**os.environ, "PYTHONPYCACHEPREFIX": f"{folder}/bytecode"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    environment["ATTNSCOPE_CACHE"] = folder if second else "off"
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run([sys.executable, *arguments], check=True, capture_output=True, env=environment)
    wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    """Time everything in turns and print a table of ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--first", action="store_true", help="time first looks, too")
    asked = parser.parse_args()
    repeats = asked.repeats
    with tempfile.TemporaryDirectory() as folder:
        timed = commands(folder, asked.first)
        times: dict[str, list[tuple[float, float]]] = {name: [] for name in timed}
        for name, arguments in timed.items():  # once unmeasured, so that every file is compiled and cached
            seconds(arguments, folder, name.startswith(SECOND))
        for _ in range(repeats):
            for name, arguments in timed.items():
                times[name].append(seconds(arguments, folder, name.startswith(SECOND)))
    base = [statistics.median(column) for column in zip(*next(iter(times.values())), strict=True)]
    print(f"{'':44}{'seconds':>9}{'ratio':>8}{'processor':>11}{'ratio':>8}")
    for name, taken in times.items():
        name = name.replace(f"{folder}/", "")
        wall, cpu = (statistics.median(column) for column in zip(*taken, strict=True))
        print(f"{name:44}{wall:9.2f}{wall / base[0]:8.2f}{cpu:11.2f}{cpu / base[1]:8.2f}")
    print(f"medians of {repeats}; {Path(sys.executable).name} {sys.version.split()[0]}")


if __name__ == "__main__":
    main()
