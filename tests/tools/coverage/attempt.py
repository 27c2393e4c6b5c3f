"""Build one type as small as it goes, run it, and compare."""

from __future__ import annotations

import sys
import traceback
from pathlib import Path
from typing import Any

import torch

from tests.tools.coverage.compare import Result, compare
from tests.tools.coverage.feed import feedings
from tests.tools.coverage.recipes import RECIPES, Recipe
from tests.tools.coverage.shrink import build, model_class, small_config


def attempt(model_type: str) -> Result:
    """Build one type as small as it goes, run it, and compare."""
    result, failures = Result(model_type), list[str]()
    if made := make(model_type, failures, result):
        return compared(result, *made)
    result.note = failures[0] if failures else "no inputs are known for it"
    return result


def make(
    model_type: str, failures: list[str], result: Result | None = None
) -> tuple[Any, Any, dict[str, Any]] | None:
    """A tiny model of a type, its config, and inputs that it runs on; what stood in the way is added."""
    recipe = RECIPES.get(model_type, Recipe())
    for factor in recipe.factors:
        try:
            config = small_config(model_type, factor, recipe.layers, recipe.changes)
            model = build(model_class(model_type, config, recipe.model), config, recipe.gain)
            if result:
                result.model, result.built = type(model).__name__, True
            given = accepted(model, [recipe.inputs(model)] if recipe.inputs else feedings(model), failures)
        except Exception as error:
            failures.append(told(error))
            continue
        if given is not None:
            return model, config, given
    return None


def compared(result: Result, model: Any, config: Any, given: dict[str, Any]) -> Result:
    """The comparison with the same model in eager; what fails in it is no result."""
    recipe = RECIPES.get(result.name, Recipe())
    try:
        eager = build(type(model), config, recipe.gain, recipe.eager)
    except Exception as error:
        eager, result.note = None, f"no eager attention: {first_line(error)}"
    try:
        compare(result, model, eager, given)
    except Exception as error:
        note = f"the comparison failed: {told(error)}"
        return Result(result.name, result.model, built=True, note=note)
    return result


def accepted(model: Any, several: list[dict[str, Any]], failures: list[str]) -> dict[str, Any] | None:
    """The first of several inputs that the model runs on."""
    for given in several:
        try:
            with torch.inference_mode():
                model(**given)
            return given
        except Exception as error:
            failures.append(told(error))
    return None


def first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"[:160]


def told(error: BaseException) -> str:
    """Its first line and its place; with ``-v`` all of it is printed, too."""
    if "-v" in sys.argv:
        traceback.print_exception(error)
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{first_line(error)} [{Path(frame.filename).name}:{frame.lineno}]"
