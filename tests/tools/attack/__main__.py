"""Run the cases of every kind, and print a table and whatever was wrong."""

from __future__ import annotations

import argparse
import os
import tempfile
from importlib import import_module
from pathlib import Path

from tests.tools.attack.cases import KINDS, make_bases
from tests.tools.attack.judge import MEMORY, run_all


def main() -> None:
    """Parse, run, print; exit code 1 where anything was wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.tools.attack")
    parser.add_argument("kinds", nargs="*", help=", ".join(KINDS))
    parser.add_argument("--cases", type=int)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--all", action="store_true", help="print every case, and every sentence")
    asked = parser.parse_args()
    os.environ |= {
        "ATTNSCOPE_MEMORY": str(MEMORY),
        "ATTNSCOPE_DEADLINE": "10",
        "ATTNSCOPE_CACHE": "off",
        "NO_COLOR": "1",
    }
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    wrong = 0
    with tempfile.TemporaryDirectory(prefix="attack-") as made:
        place = Path(made)
        make_bases(place)
        for library in (
            "matplotlib.figure",
            "matplotlib.backends.backend_svg",
            "attnscope.questions.overview",
            "rich.table",
        ):
            import_module(library)  # before the forks, so that each of them is quick
        print("| kind | cases | answers | sentences | wrong | longest |\n|---|---|---|---|---|---|")
        for kind in asked.kinds or KINDS:
            count = asked.cases or KINDS[kind][1]
            (place / f"run-{kind}").mkdir()
            found = run_all(
                kind, range(asked.first, asked.first + count), place, place / f"run-{kind}", asked.jobs
            )
            verdicts = [verdict for verdict, _, _ in found.values()]
            answers, sentences = verdicts.count("answer"), verdicts.count("sentence")
            longest = max(seconds for _, seconds, _ in found.values())
            bad = count - answers - sentences
            print(f"| {kind} | {count} | {answers} | {sentences} | {bad} | {longest:.0f} s |", flush=True)
            for number, (verdict, seconds, case) in sorted(found.items()):
                fell = verdict not in ("answer", "sentence")
                wrong += fell
                if fell or asked.all:
                    print(f"  {kind} {number} ({seconds:.0f} s): {verdict}\n    {case[:800]}", flush=True)
    raise SystemExit(wrong > 0)


if __name__ == "__main__":
    main()
