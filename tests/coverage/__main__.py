"""Run every type in a forked process of its own, with a limit of time and memory."""

from __future__ import annotations

import argparse
import json
import os
import resource
import signal
import sys
import time
import traceback
import warnings
from pathlib import Path
from typing import Any

import torch

from tests.coverage.compare import compare
from tests.coverage.feed import feedings
from tests.coverage.recipe import Recipe
from tests.coverage.recipes import RECIPES
from tests.coverage.result import Result
from tests.coverage.shrink import build, model_class, small_config

SECONDS, MEMORY = 20, 9 << 30


def attempt(model_type: str) -> Result:
    """Build one type as small as it goes, run it, and compare."""
    recipe = RECIPES.get(model_type, Recipe())
    result = Result(model_type)
    failures = []
    for factor in recipe.factors:
        try:
            config = small_config(model_type, factor, recipe.layers, recipe.changes)
            cls = model_class(model_type, config, recipe.model)
            result.model = cls.__name__
            model = build(cls, config, recipe.gain)
            result.built = True
            given = accepted(model, [recipe.inputs(model)] if recipe.inputs else feedings(model), failures)
            if given is None:
                continue
            try:
                eager = build(cls, config, recipe.gain, "eager")
            except Exception as error:
                eager, result.note = None, f"no eager attention: {first_line(error)}"
            compare(result, model, eager, given)
            return result
        except Exception as error:
            failures.append(f"{first_line(error)} [{place(error)}]")
            if "-v" in sys.argv:
                traceback.print_exc()
    result.note = failures[0] if failures else "no inputs are known for it"
    return result


def accepted(model: Any, several: list[dict[str, Any]], failures: list[str]) -> dict[str, Any] | None:
    """The first of several inputs that the model runs on."""
    for given in several:
        try:
            with torch.inference_mode():
                model(**given)
            return given
        except Exception as error:
            failures.append(f"{first_line(error)} [{place(error)}]")
            if "-v" in sys.argv:
                traceback.print_exc()
    return None


def first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"[:160]


def place(error: BaseException) -> str:
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{Path(frame.filename).name}:{frame.lineno}"


def in_a_fork(model_type: str) -> Result:
    """``attempt`` in a child, so that a crash, a leak or an endless pass ends with it."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        signal.setitimer(signal.ITIMER_PROF, SECONDS)  # of work, however busy the machine
        with os.fdopen(write, "w") as pipe:
            pipe.write(attempt(model_type).json())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        line = pipe.read()
    _, status = os.waitpid(child, 0)
    if not line:
        return Result(model_type, note=f"the process ended with status {status} (time or memory)")
    return Result(**json.loads(line))


def main() -> None:
    """Run the types that are named, or all; keep results in a JSON-lines file, so that parts add up."""
    parser = argparse.ArgumentParser()
    parser.add_argument("types", nargs="*")
    parser.add_argument("--results", type=Path, default=Path("coverage.jsonl"))
    parser.add_argument("--table", type=Path)
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
        result = in_a_fork(model_type)
        print(f"{time.monotonic() - start:5.1f}s {result.json()}", flush=True)
        done[model_type] = result.json()
        options.results.write_text("\n".join(done.values()) + "\n")
    if options.table:
        from tests.coverage.table import table

        results = [Result(**json.loads(line)) for line in done.values()]
        options.table.write_text(table(results, transformers.__version__))


if __name__ == "__main__":
    main()
