"""All recipes: types that need more than one factor for all."""

from __future__ import annotations

from tests.coverage.mixed import MIXED
from tests.coverage.recipe import Recipe
from tests.coverage.sound import SOUND
from tests.coverage.text import TEXT
from tests.coverage.vision import VISION

RECIPES: dict[str, Recipe] = TEXT | VISION | SOUND | MIXED
