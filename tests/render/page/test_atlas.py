"""An atlas opens from the disk and shows each head; its files hold what ``examples --json`` prints."""

import json
import re
from collections import Counter
from types import SimpleNamespace

import jsonschema
import numpy as np
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
    return corpus_examples(load("own"), ListedTexts(TEXTS), top=3, maps=True)


@pytest.fixture(scope="module")
def folder(result, tmp_path_factory):
    """Their atlas."""
    folder = tmp_path_factory.mktemp("atlas") / "atlas"
    assert save_atlas(result, folder, {"model": "own"}) == 32 + 5
    return folder


def test_each_head_has_a_file_of_what_examples_print(result, folder):
    shape = schema_of("examples")["properties"]["heads"]["items"]
    files = sorted(file.name for file in (folder / "heads").iterdir())
    assert files == sorted(f"{each.head.name}.json" for each in result.heads)
    for each in result.heads:
        content = json.loads((folder / "heads" / f"{each.head.name}.json").read_text("utf-8"))
        assert content["attnscope"] == plain(each)
        jsonschema.Draft202012Validator(shape).validate(content["attnscope"])


def numbers_of(folder, *path):
    """A file of the atlas."""
    return json.loads(folder.joinpath(*path).read_text("utf-8"))


TEXT, NUMBER, NUMBERS = {"type": "string"}, {"type": "number"}, {"type": "array", "items": {"type": "number"}}


def an_object(**properties):
    """An object that has all of these."""
    return {"type": "object", "required": list(properties), "properties": properties}


def a_list(items):
    """A list of such items."""
    return {"type": "array", "items": items}


BINS = an_object(bin_edges=NUMBERS, bin_values=NUMBERS)
TOKENS = a_list(an_object(token=TEXT, weight=NUMBER))
SEQUENCE = an_object(
    sequence_id=NUMBER,
    interval=NUMBER,
    tokens=a_list(TEXT),
    attention_indices=NUMBERS,
    attention_values=NUMBERS,
    seq_len=NUMBER,
    max_activation=NUMBER,
)
HEAD = an_object(
    sequences=a_list(SEQUENCE),
    qk_distance_histogram=BINS,
    top_query_tokens=TOKENS,
    top_key_tokens=TOKENS,
    histogram=BINS,
    statistics=an_object(n_samples=NUMBER),
)
CONFIG = an_object(
    model_name=TEXT,
    dataset_name=TEXT,
    heads=a_list(NUMBERS),
    n_layers=NUMBER,
    n_heads=NUMBER,
    n_intervals=NUMBER,
    metrics=a_list(TEXT),
    metric_descriptions={"type": "object"},
    head_data_pattern=TEXT,
    has_umap={"const": False},
    umap_heads={"const": []},
    custom_plots=a_list(an_object(key=TEXT, label=TEXT)),
    custom_tables=a_list(an_object(key=TEXT, label=TEXT)),
    statistics_display={"type": "object"},
)
"""The fields of HeadVis's files, written from their public description."""


def test_files_have_the_fields_that_headvis_reads(folder, result):
    config, points = (numbers_of(folder, name) for name in ("config.json", "scatter_data.json"))
    jsonschema.Draft202012Validator(CONFIG).validate(config)
    assert (config["attnscope"]["by"], config["attnscope"]["input"]) == (result.by, {"model": "own"})
    assert [[point["layer"], point["head"]] for point in points] == config["heads"]
    assert all({*config["metrics"]} == {*point} - {"layer", "head"} for point in points)
    assert (
        numbers_of(folder, "server_config.json") == numbers_of(folder, "attributions", "manifest.json") == {}
    )
    for layer, head in config["heads"]:
        name = config["head_data_pattern"].format(layer=layer, head=head)
        content = numbers_of(folder, "heads", name)
        jsonschema.Draft202012Validator(HEAD).validate(content)
        for each in config["custom_plots"]:
            bins = content[each["key"]]
            assert len(bins["bin_edges"]) == len(bins["bin_values"]) + 1
        assert all(content[each["key"]] for each in config["custom_tables"])
        assert {*content["statistics"]} == {*config["statistics_display"]}


def test_maps_of_a_head_are_the_heaviest_weights_of_its_texts(folder):
    model, content = load("own"), numbers_of(folder, "heads", "L1H3.json")
    distances, queries = Counter(), Counter()
    for each in content["sequences"]:
        prepared, maps = model.prepare(TEXTS[each["sequence_id"] - 1]), []
        model.run(prepared, [SimpleNamespace(observe=lambda call, maps=maps: maps.append(call.weights()[0]))])
        weights, size = maps[1][3].numpy(), len(prepared.tokens)
        assert len(each["tokens"]) == each["seq_len"] == size
        found = np.zeros((size, size))
        found.flat[each["attention_indices"]] = each["attention_values"]
        kept = weights * ((weights >= np.sort(weights)[:, [-min(8, size)]]) & (weights >= 0.005))
        assert found == pytest.approx(kept, abs=1e-6)
        assert each["max_activation"] == pytest.approx(weights[1:, 1:].max(), abs=1e-6)
        assert 1 <= each["interval"] <= 10
        for row, key in zip(*found.nonzero(), strict=True):
            distances[abs(row - key)] += found[row, key]
            queries[each["tokens"][row]] += found[row, key]
    bins = content["qk_distance_histogram"]
    ends = zip(bins["bin_edges"], bins["bin_edges"][1:], strict=False)
    assert bins["bin_values"] == pytest.approx(
        [sum(sum_ for gap, sum_ in distances.items() if low <= gap < high) for low, high in ends], abs=1e-5
    )
    assert content["top_query_tokens"][0]["weight"] == pytest.approx(max(queries.values()), abs=1e-5)
    strongest = {row["text"] for row in content["attnscope"]["top"]}
    assert {
        f"text {each['sequence_id']}" for each in content["sequences"] if each["interval"] == 10
    } >= strongest


def test_page_loads_nothing_and_text_ends_no_script(folder):
    page = (folder / "index.html").read_text("utf-8")
    assert not re.findall(r"""(?:src|href)=["']|https?://(?!www\.w3\.org/2000/svg)""", page)
    assert "default-src 'none'" in page
    assert page.count("</script>") == page.count("<script") == 32 + 3
    places = re.search(r'id="data-scatter">(.*?)</script>', page)[1]
    assert len({tuple(head["place"]) for head in json.loads(places)}) == 32
    assert "<b>x" not in page


def test_heads_of_several_kinds_have_names_of_their_own(tmp_path):
    found = corpus_examples(load(t5(tmp_path / "t5")), ListedTexts(LINES), top=1)
    save_atlas(found, tmp_path / "atlas", {})
    names = {file.stem for file in (tmp_path / "atlas" / "heads").iterdir()}
    assert names >= {"encoder-L0H0", "decoder-L0H0", "cross-L1H3"}
    config = json.loads((tmp_path / "atlas" / "config.json").read_text("utf-8"))
    assert config["head_data_pattern"] == "decoder-L{layer}H{head}.json"
    assert len(config["heads"]) == sum(each.head.kind == "decoder" for each in found.heads)
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
    assert chromium.texts("svg text") == ["L1H3"]

    def search(typed):
        chromium.run(f"element('search').value = {json.dumps(typed)}")
        chromium.run("element('search').dispatchEvent(new Event('input'))")
        return chromium.texts("#list li:not(.hidden) a")

    assert search("l2h1") == ["L2H1"]
    assert len(chromium.texts("circle:not(.hidden)")) == 1
    assert chromium.texts("svg text") == [""]
    pair = ("sat", "cat")
    alike = [each.head.name for each in result.heads if pair in {near.tokens for near in each.pairs}]
    assert search("sat -> cat") == alike != []
    assert chromium.texts("#list li:not(.hidden) .quiet + .pair") == ["sat → cat"] * len(alike)
    assert search("at → cat") == []
    chromium.run("element('across').value = 'layer'; element('across').dispatchEvent(new Event('change'))")
    layers = chromium.run("new Set(heads.map((head) => head.point.getAttribute('cx'))).size")
    assert layers == 4
    assert chromium.troubles == []
