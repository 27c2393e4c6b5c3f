"""The site is built of the project's own pages, and no link in it leads nowhere."""

import importlib
import re

import pytest

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


@pytest.mark.slow
def test_the_site_is_built_without_a_warning_and_can_be_searched(tmp_path, monkeypatch):
    pytest.importorskip("material")
    monkeypatch.setattr(site, "PICTURES", {})
    site.build(tmp_path / "site")
    assert "attention heads" in (tmp_path / "site" / "index.html").read_text("utf-8")
    assert "induction" in (tmp_path / "site" / "search" / "search_index.json").read_text("utf-8")
