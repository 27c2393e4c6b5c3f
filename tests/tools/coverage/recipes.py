"""All recipes: types that need more than one factor for all."""

from __future__ import annotations

from tests.tools.coverage.mixed import MIXED
from tests.tools.coverage.recipe import Recipe
from tests.tools.coverage.sound import SOUND
from tests.tools.coverage.text import TEXT
from tests.tools.coverage.vision import VISION

RECIPES: dict[str, Recipe] = TEXT | VISION | SOUND | MIXED
