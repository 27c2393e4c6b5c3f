"""The tools: links of the site exist, and hostile cases end well."""

import importlib
import re

import pytest
import torch

from attnscope.attention import Site
from tests.capture.observing import CapturedMap
from tests.render.page.browser import CHROMIUM, browser
from tests.tools import gallery
from tests.tools.attack.__main__ import run_case, unseen
from tests.tools.attack.cases import KINDS, make_bases
from tests.tools.coverage.live import is_flat, run
from tests.tools.coverage.pictures import count_axes
from tests.tools.coverage.recipes import make
from tests.tools.survey import survey

site = importlib.import_module("tests.tools.site.__main__")
ASKS = r"<(script|link|img)[^>]+(src|href)=.?https?://(?!localhost)"


@pytest.fixture(scope="module", autouse=True)
def no_pictures():
    """Of the commands in the site's gallery nothing is drawn."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(site, "PICTURES", {})
        yield


def test_site_links_exist_and_generated_pages_are_complete(tmp_path):
    site.write_pages(tmp_path)
    pages = {page: page.read_text("utf-8") for page in tmp_path.rglob("*.md")}
    links = [(page, link[2]) for page, text in pages.items() for link in site.LINK.findall(text)]
    inside = [page.parent / target for page, target in links if "://" not in target]
    assert len(inside) > 10
    assert [target for target in inside if not target.is_file()] == []
    measures, python = (pages[tmp_path / f"{name}.md"] for name in ("measures", "python"))
    assert set(re.findall("^## (.+)$", measures, re.M)) == set(site.MEASURES)
    assert {"`attnscope.load`", "`run.stats`", "`run.cut`"} <= set(re.findall("^##+ (.+)$", python, re.M))


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    pytest.importorskip("material")
    out = tmp_path_factory.mktemp("site")
    site.build(out)
    return out


@pytest.mark.nightly
@pytest.mark.slow
def test_site_builds_without_external_requests(built):
    assert "attention heads" in (built / "index.html").read_text("utf-8")
    for page in built.rglob("*.html"):
        assert not re.search(ASKS, page.read_text("utf-8")), page


@pytest.mark.nightly
@pytest.mark.browser
@pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine (apt-get install chromium)")
def test_site_search_works_from_disk(built):
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
    return make_bases(tmp_path_factory.mktemp("bases"))


@pytest.mark.sweep(4)
@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_attack_case_ends_in_an_answer_or_one_sentence(kind, bases, tmp_path, monkeypatch, request):
    monkeypatch.setenv("ATTNSCOPE_CACHE", "off")
    monkeypatch.setenv("ATTNSCOPE_DEADLINE", "5")
    numbers = range(25 if request.config.getoption("whole") else 2)
    found = {number: run_case(kind, number, bases, tmp_path) for number in numbers}
    wrong = {number: said for number, said in found.items() if said[0] not in ("answer", "sentence")}
    assert wrong == {}


@pytest.mark.parametrize(
    ("model_type", "counts"), [("vit", {"named": 2}), ("detr", {"named": 2, "queries": 4})]
)
def test_survey_counts_maps_of_a_picture_by_named_axes(model_type, counts, monkeypatch):
    model, _, given = make(model_type, [])
    assert count_axes(model, given) == (counts, "")
    monkeypatch.setattr("attnscope.models.huggingface.reader._patch_grid", lambda *sizes: None)
    monkeypatch.setattr("attnscope.models.huggingface.model.find_grids", lambda *found: ({}, [49]))
    assert count_axes(model, given)[0]["numbered"] == counts["named"] + (2 if "queries" in counts else 0)


def test_survey_knows_a_map_on_which_every_comparison_succeeds():
    allowed = torch.ones(1, 1, 4, 4, dtype=torch.bool).tril()
    even = allowed / allowed.sum(-1, keepdim=True)
    site = Site("attention", 0, "decoder", 0)
    assert is_flat(CapturedMap(site, even, allowed, range(4), range(4)))
    other = even.clone()
    other[0, 0, 3] = torch.tensor([0.25 + 1e-3, 0.25, 0.25, 0.25 - 1e-3])
    assert not is_flat(CapturedMap(site, other, allowed, range(4), range(4)))


@pytest.mark.parametrize("model_type", ["pix2struct_vision_model", "zaya"])
def test_survey_has_no_even_rows_of_small_matrices_or_zeros(model_type):
    model, _, given = make(model_type, [])
    _, _, maps = run(model, given)
    assert len(maps) == 2
    assert not any(map(is_flat, maps))


def test_survey_goes_on_where_it_ended(tmp_path, monkeypatch):
    results, done = tmp_path / "some.jsonl", []
    monkeypatch.setattr("sys.argv", ["some", "--results", str(results)])
    monkeypatch.setattr("tests.tools.survey.in_a_fork", lambda work, *limits: (work(), 0))
    survey("some", lambda: ["a", "b"], lambda name: done.append(name) or {"number": 1}, str)
    with results.open("a") as file:
        file.write('{"name": "b", "number": 2}\n')
    monkeypatch.setattr("sys.argv", ["some", "--results", str(results), "--table", str(tmp_path / "some.md")])
    survey("some", lambda: ["a", "b", "c"], lambda name: done.append(name) or {"number": 3}, str)
    assert done == ["a", "b", "c"]
    rows = [{"name": "a", "number": 1}, {"name": "b", "number": 2}, {"name": "c", "number": 3}]
    assert (tmp_path / "some.md").read_text() == str(rows)


@pytest.mark.parametrize("printed", ["\x1b[2J", "\u202e", "\ud800", "\ufffe", "\x9b", "\u2028", "\r"])
def test_control_codes_in_output_are_detected(printed):
    assert unseen(printed.encode("utf-8", "surrogatepass"))
    assert not unseen("a ␛ ‹202E› שלום\n".encode())


@pytest.mark.nightly
def test_gallery_shows_every_terminal_within_its_lines(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["gallery", str(tmp_path), "--tokens", "13", "--shapes", "4x8,12x12"])
    monkeypatch.setattr(gallery, "CHROMIUM", None)
    gallery.main()
    lines = re.findall(r"\d+ × (\d+), (\d+) lines", capsys.readouterr().out)
    assert len(lines) == 4
    assert all(int(used) < int(height) for height, used in lines)
    index = (tmp_path / "index.html").read_text("utf-8")
    files = re.findall(r'(?:src|href)="([^"]+)"', index)
    assert {"4x8-13.png", "12x12-13.html"} <= {*files}
    assert all((tmp_path / file).is_file() for file in files)
