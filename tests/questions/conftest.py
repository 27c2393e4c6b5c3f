"""The models that are asked most, loaded once for a file."""

import pytest

from attnscope.models import load
from tests.models import folders


@pytest.fixture(scope="module")
def own():
    return load("own")


@pytest.fixture(scope="module")
def causal():
    return load("own-causal")


@pytest.fixture(scope="module")
def minilm():
    return load(folders.minilm())
