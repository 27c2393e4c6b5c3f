"""What several tests of models share."""

from collections.abc import Callable

import pytest

from tests.models.vision_folders import vision_language


@pytest.fixture(scope="session")
def folder_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    """The folder of a tiny vision-language model of a family, made once."""
    made: dict[str, str] = {}

    def folder(name: str) -> str:
        if name not in made:
            made[name] = vision_language(tmp_path_factory.mktemp(name), name)
        return made[name]

    return folder
