"""Build one type as small as it goes, run it, and compare."""

from __future__ import annotations

import sys
import traceback
from pathlib import Path
from typing import Any

import torch

from tests.tools.coverage.compare import compare
from tests.tools.coverage.feed import feedings
from tests.tools.coverage.recipe import Recipe
from tests.tools.coverage.recipes import RECIPES
from tests.tools.coverage.result import Result
from tests.tools.coverage.shrink import build, model_class, small_config

LOUD = "-v" in sys.argv


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
        except Exception as error:
            failures.append(f"{first_line(error)} [{place(error)}]")
            if LOUD:
                traceback.print_exc()
            continue
        if given is not None:
            return compared(result, model, config, given)
    result.note = failures[0] if failures else "no inputs are known for it"
    return result


def compared(result: Result, model: Any, config: Any, given: dict[str, Any]) -> Result:
    """The comparison with the same model in eager; what fails in it is no result."""
    recipe = RECIPES.get(result.type, Recipe())
    try:
        eager = build(type(model), config, recipe.gain, recipe.eager)
    except Exception as error:
        eager, result.note = None, f"no eager attention: {first_line(error)}"
    try:
        compare(result, model, eager, given)
    except Exception as error:
        if LOUD:
            traceback.print_exc()
        note = f"the comparison failed: {first_line(error)} [{place(error)}]"
        return Result(result.type, result.model, built=True, note=note)
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
            if LOUD:
                traceback.print_exc()
    return None


def first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"[:160]


def place(error: BaseException) -> str:
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{Path(frame.filename).name}:{frame.lineno}"
