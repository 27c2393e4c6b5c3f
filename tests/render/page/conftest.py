"""A browser for the tests of a file."""

import pytest

from tests.render.page.browser import browser


@pytest.fixture(scope="module")
def chromium():
    """One browser, with a profile of its own."""
    with browser() as found:
        yield found


@pytest.fixture
def opened(chromium, path):
    """The page of a file, freshly loaded in a wide light window; nothing may go wrong in it during a test."""
    chromium.open_anew(path)
    yield chromium
    assert chromium.troubles == []
