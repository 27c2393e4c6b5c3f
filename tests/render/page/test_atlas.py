"""An atlas opens from the disk and shows each head; its files hold what ``examples --json`` prints."""

import json
import re

import jsonschema
import pytest

from attnscope.attention import Head
from attnscope.errors import OutputError
from attnscope.models import load
from attnscope.questions.answer import schema_of
from attnscope.questions.examples import corpus_examples
from attnscope.records import plain
from attnscope.render.page.atlas import refuse_full, save_atlas
from attnscope.storage.corpus import ListedTexts
from tests.models.folders import LINES, t5
from tests.render.page.browser import MARKS

HOSTILE = "</script><b>x</b> & \u202e 'quoted' \"twice\""
TEXTS = [*LINES, f"The {HOSTILE} cat sat.", "It slept because it was tired."] * 2


@pytest.fixture(scope="module")
def result():
    """All heads of the bundled encoder over a few texts."""
    return corpus_examples(load("own"), ListedTexts(TEXTS), top=3)


@pytest.fixture(scope="module")
def folder(result, tmp_path_factory):
    """Their atlas."""
    folder = tmp_path_factory.mktemp("atlas") / "atlas"
    assert save_atlas(result, folder, {"model": "own"}) == 32 + 3
    return folder


def test_each_head_has_a_file_of_what_examples_print(result, folder):
    shape = schema_of("examples")["properties"]["heads"]["items"]
    files = sorted(file.name for file in (folder / "heads").iterdir())
    assert files == sorted(f"{each.head.name}.json" for each in result.heads)
    for each in result.heads:
        content = json.loads((folder / "heads" / f"{each.head.name}.json").read_text("utf-8"))
        assert content == plain(each)
        jsonschema.Draft202012Validator(shape).validate(content)


def test_scatter_has_every_head_with_a_place_of_its_own(folder, result):
    heads = json.loads((folder / "scatter_data.json").read_text("utf-8"))
    assert [head["name"] for head in heads] == [each.head.name for each in result.heads]
    assert len({tuple(head["place"]) for head in heads}) == 32
    config = json.loads((folder / "config.json").read_text("utf-8"))
    assert (config["by"], config["input"]) == (result.by, {"model": "own"})


def test_page_loads_nothing_and_text_ends_no_script(folder):
    page = (folder / "index.html").read_text("utf-8")
    assert not re.findall(r"""(?:src|href)=["']|https?://(?!www\.w3\.org/2000/svg)""", page)
    assert "default-src 'none'" in page
    assert page.count("</script>") == page.count("<script") == 32 + 3
    assert "<b>x" not in page


def test_heads_of_several_kinds_have_names_of_their_own(tmp_path):
    found = corpus_examples(load(t5(tmp_path / "t5")), ListedTexts(LINES), top=1)
    save_atlas(found, tmp_path / "atlas", {})
    names = {file.stem for file in (tmp_path / "atlas" / "heads").iterdir()}
    assert names >= {"encoder-L0H0", "decoder-L0H0", "cross-L1H3"}
    assert len(names) == len(found.heads)


def test_folder_with_files_is_refused(folder, tmp_path):
    with pytest.raises(OutputError, match="is not empty: give another folder, or --force"):
        refuse_full(folder)
    refuse_full(tmp_path)


@pytest.mark.parametrize("mark", [pytest.param(0, marks=MARKS)])
def test_page_shows_a_head_and_finds_others(chromium, folder, result, mark):
    head = next(each for each in result.heads if each.head == Head("encoder L1H3"))
    chromium.size(1200, 900)
    chromium.load(folder / "index.html", "#L1H3")
    assert chromium.texts("h2") == ["L1H3"]
    assert chromium.texts("article p")[0] == head.role.sentence
    rows = chromium.texts("table:first-of-type tr")
    assert len(rows) == 1 + len(head.top)
    assert head.top[0].text in rows[1]
    assert chromium.texts("table:first-of-type tr:nth-child(2) .row") == [head.top[0].token]
    assert chromium.texts("a[href='#L1H3']")
    chromium.run("element('search').value = 'l2h1'; element('search').dispatchEvent(new Event('input'))")
    assert chromium.texts("#list li:not(.hidden) a") == ["L2H1"]
    assert len(chromium.texts("circle:not(.hidden)")) == 1
    chromium.run("element('across').value = 'layer'; element('across').dispatchEvent(new Event('change'))")
    layers = chromium.run("new Set(heads.map((head) => head.point.getAttribute('cx'))).size")
    assert layers == 4
    assert chromium.troubles == []
