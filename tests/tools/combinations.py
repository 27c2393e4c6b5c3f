"""Hundreds of random attention calls through the fused pass, rows, and brute force in float64.

    python -m tests.tools.combinations --count 230

Prints how many figures were compared, and the farthest of them from brute force.
"""

from __future__ import annotations

import argparse

from attnscope.fused import weigh as plan
from tests.fused.combinations import Verdict, check


def main() -> None:
    """Run the combinations, in small tiles and in those of every day."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--count", type=int, default=230)
    parser.add_argument("--first", type=int, default=1000)
    options = parser.parse_args()
    verdict, failed, usual = Verdict(), [], (plan.ROWS, plan.KEYS)
    for seed in range(options.first, options.first + options.count):
        plan.ROWS, plan.KEYS = (24, 32) if seed % 4 else usual
        try:
            check(seed, verdict)
        except AssertionError as error:
            failed.append(str(error))
    print(
        f"{options.count} combinations, {verdict.figures:,} figures, farthest off by {verdict.farthest:.1e}"
    )
    print(f"{len(failed)} failed", *failed, sep="\n")


if __name__ == "__main__":
    main()
