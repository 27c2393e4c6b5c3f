"""A browser for the tests of this folder, and a profile for each file."""

import pytest

from tests.render.page.browser import launched, profile


@pytest.fixture(scope="package")
def process():
    """One browser; no longer, since others cannot run a loop beside it."""
    with launched() as found:
        yield found


@pytest.fixture(scope="module")
def chromium(process):
    """A page with a profile of its own."""
    with profile(process) as found:
        yield found


@pytest.fixture
def opened(chromium, path):
    """The page of a file, freshly loaded in a wide light window; nothing may go wrong in it during a test."""
    chromium.open_anew(path)
    yield chromium
    assert chromium.troubles == []
