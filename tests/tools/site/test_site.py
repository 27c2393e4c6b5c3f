"""The site is built of the project's own pages, and no link in it leads nowhere."""

import importlib
import re

import pytest

from tests.render.page.browser import CHROMIUM, browser

site = importlib.import_module("tests.tools.site.__main__")


@pytest.fixture
def pages(tmp_path, monkeypatch):
    """The pages, without the pictures that commands would draw."""
    monkeypatch.setattr(site, "PICTURES", {})
    site.write_pages(tmp_path)
    return tmp_path


def test_every_link_between_pages_leads_to_a_page(pages):
    links = 0
    for page in pages.rglob("*.md"):
        for mark, _, target, _ in site.LINK.findall(page.read_text("utf-8")):
            if "://" not in target:
                assert (page.parent / target).is_file(), f"{page.name} {mark} {target}"
                links += 1
    assert links > 10


def test_what_is_made_of_the_code_is_whole(pages):
    measures, python = ((pages / f"{name}.md").read_text("utf-8") for name in ("measures", "python"))
    assert set(re.findall("^## (.+)$", measures, re.M)) == set(site.MEASURES)
    assert {"`attnscope.load`", "`run.stats`", "`run.cut`"} <= set(re.findall("^##+ (.+)$", python, re.M))


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The site without its gallery."""
    pytest.importorskip("material")
    out = tmp_path_factory.mktemp("site")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(site, "PICTURES", {})
        site.build(out)
    return out


@pytest.mark.slow
def test_the_site_is_built_without_a_warning_and_asks_no_other_machine(built):
    assert "attention heads" in (built / "index.html").read_text("utf-8")
    for page in built.rglob("*.html"):
        assert not re.search(
            r"<(script|link|img)[^>]+(src|href)=.?https?://(?!localhost)", page.read_text("utf-8")
        ), page


@pytest.mark.slow
@pytest.mark.browser
@pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine (apt-get install chromium)")
def test_its_search_answers_from_the_disk(built, tmp_path):
    field, found = "document.querySelector('[data-md-component=search-query]')", ".md-search-result__link"
    with browser(tmp_path) as chromium:
        chromium.size(1200, 800)
        chromium.load(built / "attnscope" / "cli" / "TOUR.html")
        chromium.run(f"{field}.focus()")
        chromium.run(f"({field}).value = 'induction'")
        chromium.run(f"{field}.dispatchEvent(new KeyboardEvent('keyup', {{bubbles: true}}))")
        chromium.until(f"document.querySelectorAll('{found}').length > 3")
        links = chromium.run(f"[...document.querySelectorAll('{found}')].map(link => link.href)")
        assert f"{built.as_uri()}/measures.html#induction" in links
        assert chromium.troubles == []
