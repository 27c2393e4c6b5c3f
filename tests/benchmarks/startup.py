"""How long a look takes: ``python -m tests.benchmarks.startup [--first] [--repeats N]``.

Everything is timed in one run, in turns, as whole processes. A second look is at the pass that another one
kept; it is printed as a ratio to ``python -c "import torch"``, which nobody can avoid. ``--first`` times
first looks, which run the model and keep its pass, as a ratio to the script that people write today:
AutoModel with eager attention, one ``imshow``, ``savefig``. It reads the MiniLM that a test dependency
carries, and so does attnscope for the comparison with it. Medians over the repeats, 7 of second looks and 3
of first ones: either takes one to two minutes where nothing else runs.
"""

import argparse
import sys
import tempfile
from functools import partial
from pathlib import Path

from tests.benchmarks.turns import medians, process, take_turns
from tests.models.folders import minilm

TEXT = "The cat sat on the mat because it was tired."

RIVAL = "AutoModel, eager, imshow, savefig"

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


def second_looks(folder: str) -> dict[str, list[str]]:
    """What is timed, by name, behind what it is held against."""
    head = "show --head L2H5"
    looks = ("show", head, f"{head} --words", "show --hide-special", "show --token cat", "stats")
    timed = {'python -c "import torch"': ["-c", "import torch"]}
    timed["attnscope --help"] = ["-m", "attnscope", "--help"]
    for look in (*looks, f"{head} -o {folder}/again.png"):
        command, *asked = look.split(" ")
        timed[f"second look: {look}"] = ["-m", "attnscope", command, TEXT, "-m", minilm(), *asked]
    return timed | {"second look: show, own": ["-m", "attnscope", "show", TEXT]}


def first_looks(folder: str) -> dict[str, list[str]]:
    """Those that run the model, behind their rival."""
    show = ["-m", "attnscope", "show", TEXT]
    return {
        RIVAL: ["-c", SCRIPT, minilm(), TEXT, f"{folder}/script.png"],
        "show -m MiniLM --head L2H5": [*show, "-m", minilm(), "--head", "L2H5"],
        "the same with -o head.png": [*show, "-m", minilm(), "--head", "L2H5", "-o", f"{folder}/head.png"],
        "show, own": show,
        'python -c "import torch"': ["-c", "import torch"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, help="7, or 3 with --first")
    parser.add_argument("--first", action="store_true", help="time first looks")
    asked = parser.parse_args()
    repeats = asked.repeats or (3 if asked.first else 7)
    with tempfile.TemporaryDirectory() as folder:
        timed = first_looks(folder) if asked.first else second_looks(folder)
        runs = {name: partial(process, each, Path(folder), fresh=asked.first) for name, each in timed.items()}
        found = {name: medians(taken) for name, taken in take_turns(runs, repeats).items()}
    base = next(iter(found.values()))
    print(f"{'':44}{'seconds':>9}{'ratio':>8}{'processor':>11}{'ratio':>8}")
    for name, (wall, cpu) in found.items():
        name = name.replace(f"{folder}/", "")
        print(f"{name:44}{wall:9.2f}{wall / base[0]:8.2f}{cpu:11.2f}{cpu / base[1]:8.2f}")
    print(f"medians of {repeats}; {Path(sys.executable).name} {sys.version.split()[0]}")


if __name__ == "__main__":
    main()
