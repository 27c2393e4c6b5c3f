"""A browser for the tests of a file."""

import pytest

from tests.render.page.browser import browser


@pytest.fixture(scope="module")
def chromium(tmp_path_factory):
    """One browser, with a profile of its own."""
    with browser(tmp_path_factory.mktemp("profile")) as found:
        yield found
