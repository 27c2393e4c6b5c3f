"""A round of tools: no link of the site leads nowhere, hostile cases end well."""

import importlib
import re

import pytest

from tests.render.page.browser import CHROMIUM, browser
from tests.tools.attack.__main__ import run_case, unseen
from tests.tools.attack.cases import KINDS, make_bases

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


@pytest.mark.nightly
@pytest.mark.browser
@pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine (apt-get install chromium)")
def test_its_search_answers_from_the_disk(built):
    field, found = "document.querySelector('[data-md-component=search-query]')", ".md-search-result__link"
    with browser() as chromium:
        chromium.size(1200, 800)
        chromium.load(built / "attnscope" / "cli" / "TOUR.html")
        chromium.run(f"{field}.focus()")
        chromium.run(f"({field}).value = 'induction'")
        chromium.run(f"{field}.dispatchEvent(new KeyboardEvent('keyup', {{bubbles: true}}))")
        chromium.until(f"document.querySelectorAll('{found}').length > 3")
        links = chromium.run(f"[...document.querySelectorAll('{found}')].map(link => link.href)")
        assert f"{built.as_uri()}/measures.html#induction" in links
        assert chromium.troubles == []


@pytest.fixture(scope="module")
def bases(tmp_path_factory):
    made = tmp_path_factory.mktemp("bases")
    make_bases(made)
    return made


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_case_ends_in_an_answer_or_in_a_sentence(kind, bases, tmp_path, monkeypatch, request):
    monkeypatch.setenv("ATTNSCOPE_CACHE", "off")
    monkeypatch.setenv("ATTNSCOPE_DEADLINE", "5")
    numbers = range(25 if request.config.getoption("whole") else 2)
    found = {number: run_case(kind, number, bases, tmp_path) for number in numbers}
    wrong = {number: said for number, said in found.items() if said[0] not in ("answer", "sentence")}
    assert wrong == {}


@pytest.mark.parametrize("printed", ["\x1b[2J", "\u202e", "\ud800", "\ufffe", "\x9b", "\u2028", "\r"])
def test_what_a_terminal_obeys_is_seen(printed):
    assert unseen(printed.encode("utf-8", "surrogatepass"))
    assert not unseen("a ␛ ‹202E› שלום\n".encode())
