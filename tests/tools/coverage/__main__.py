"""Run every type in a forked process of its own, with a limit of time and memory."""

from __future__ import annotations

import argparse
import json
import time
import warnings
from pathlib import Path

import torch

from tests.tools.coverage.attempt import attempt
from tests.tools.coverage.fork import in_a_fork
from tests.tools.coverage.result import Result

SECONDS, MEMORY = 40, 9 << 30


def in_its_fork(model_type: str, seconds: int) -> Result:
    """``attempt`` in a child."""
    line, status = in_a_fork(lambda: attempt(model_type).json(), seconds, MEMORY)
    if not line:
        return Result(model_type, note=f"the process ended with status {status} (time or memory)")
    return Result(**json.loads(line))


def main() -> None:
    """Run the types that are named, or all; keep results in a JSON-lines file, so that parts add up."""
    parser = argparse.ArgumentParser()
    parser.add_argument("types", nargs="*")
    parser.add_argument("--results", type=Path, default=Path("coverage.jsonl"))
    parser.add_argument("--table", type=Path)
    parser.add_argument("--seconds", type=int, default=SECONDS, help="of work that one type may take")
    parser.add_argument("-v", action="store_true")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    import transformers
    import transformers.models.llama.modeling_llama
    import transformers.models.t5.modeling_t5
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    done = {}
    if options.results.exists():
        for line in options.results.read_text().splitlines():
            done[json.loads(line)["type"]] = line
    for model_type in options.types or [name for name in CONFIG_MAPPING_NAMES if name not in done]:
        start = time.monotonic()
        result = in_its_fork(model_type, options.seconds)
        print(f"{time.monotonic() - start:5.1f}s {result.json()}", flush=True)
        done[model_type] = result.json()
        options.results.write_text("\n".join(done.values()) + "\n")
    if options.table:
        from tests.tools.coverage.table import table

        results = [Result(**json.loads(line)) for line in done.values()]
        options.table.write_text(table(results, transformers.__version__))


if __name__ == "__main__":
    main()
