"""``attnscope compare``: the numbers of the library, as pictures, JSON, CSV and arrays."""

import csv
import io
import json

import numpy as np
import pytest

from attnscope.models import load
from attnscope.questions.across import compare_models, compare_texts
from attnscope.questions.compare import compare_all_heads, compare_two_heads
from attnscope.questions.selection import Selection
from tests.models.folders import minilm

TEXT = "The cat sat on the mat because it was tired."
OTHER = "The dog sat on the very old mat because it was tired."


@pytest.fixture(scope="module")
def own():
    return load("own")


@pytest.fixture(scope="module")
def whole(own):
    return compare_all_heads(own, own.prepare(TEXT))


def test_a_layer_that_sees_other_tokens_than_the_texts_cannot_be_aligned(run, tmp_path):
    even = {f"encoder.0{layer}": np.full((2, n, n), 1 / n, np.float32) for layer, n in enumerate((6, 3))}
    np.savez(tmp_path / "pooled.npz", **even)
    both = [str(tmp_path / "pooled.npz"), "--with-trace", str(tmp_path / "pooled.npz")]
    refused = run("compare", "--from", *both)
    assert (refused.code, refused.out) == (2, "")
    assert "layer 1 sees 3 × 3 tokens of 6 × 6, which cannot be aligned: choose others" in refused.err
    assert run("compare", "--from", *both, "--layer", "0").code == 0


def numbers(run, *arguments):
    ran = run("compare", *arguments, "--json")
    assert (ran.code, ran.err) == (0, "")
    return json.loads(ran.out)


def test_texts_that_are_too_long_for_a_command_to_copy_are_compared_as_others_are(run):
    long = f"{TEXT} {'The dog barked at the moon. ' * 12}"
    other = long.replace("sat", "ran")
    changed = numbers(run, long, "--with-text", other)["heads"]
    assert any(head["change"] for head in changed)
    assert run("compare", long, "--head", "3").out.startswith("4 heads compared")


def test_all_heads_as_json(run, whole):
    found = numbers(run, TEXT)
    assert found["heads"] == [head.name for head in whole.heads]
    assert np.array(found["distances"]) == pytest.approx(whole.distances, abs=1e-6)
    assert [name for group in found["groups"] for name in group] == list(whole.view.table.rows)
    assert found["rows"] == {"compared": 13, "of": 13}


def test_all_pairs_as_csv(run, whole):
    rows = list(csv.DictReader(io.StringIO(run("compare", TEXT, "--csv").out)))
    assert len(rows) == 32 * 31 / 2
    names = [head.name for head in whole.heads]
    for row in rows[::50]:
        expected = whole.distances[names.index(row["one"]), names.index(row["other"])]
        assert float(row["distance"]) == pytest.approx(expected, abs=1e-6)


def test_all_heads_in_the_terminal(run, whole):
    ran = run("compare", TEXT)
    assert (ran.code, ran.err) == (0, "")
    near = whole.nearest[0]
    assert f"attnscope compare '{TEXT}' {near.one.name} {near.other.name}" in ran.out
    assert f"{len(whole.groups.members)} groups" in ran.out
    commands = [line for line in ran.out.splitlines() if "attnscope compare" in line]
    assert max(len(line) for line in ran.out.splitlines() if line not in commands) <= 80


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        ([], {"heads", "distances", "error", "groups", "points"}),
        (["L0H1", "L2H3"], {"heads", "rows", "by_row", "one", "other", "difference", "queries", "keys"}),
        (["--with-text", OTHER], {"heads", "change", "error"}),
        (["--with-text", OTHER, "--head", "1.3"],
         {"heads", "change", "error", "difference", "queries", "keys"}),
        (["--with-model", "own"], {"heads", "others", "distances", "error", "matches"}),
    ],
)  # fmt: skip
def test_arrays_are_saved(run, tmp_path, arguments, names):
    path = tmp_path / "found.npz"
    assert run("compare", TEXT, *arguments, "-o", path).code == 0
    with np.load(path) as found:
        assert set(found.files) == names
        assert found["heads"].shape[1] == 2
        if "difference" in names and "one" in names:
            assert np.array_equal(found["difference"], found["one"] - found["other"])


def test_two_heads_and_the_tokens_where_they_part(run, own):
    seen = compare_two_heads(own, own.prepare(TEXT), "L0H1", "L2H3")
    found = numbers(run, TEXT, "L0H1", "2.3")
    assert found["distance"] == pytest.approx(seen.distance, abs=1e-6)
    assert found["partings"][0]["token"] == seen.view.partings[0].label
    out = run("compare", TEXT, "L0H1", "L2H3").out
    assert "L0H1 − L2H3" in out
    assert "where they part most" in out


def test_heads_may_follow_a_file(run, tmp_path):
    (tmp_path / "text.txt").write_text(TEXT)
    found = numbers(run, "L0H1", "L2H3", "--file", tmp_path / "text.txt")
    assert found["heads"] == ["L0H1", "L2H3"]


def test_two_texts(run, own):
    seen = compare_texts(own, own.prepare(TEXT), own.prepare(OTHER))
    rows = list(csv.DictReader(io.StringIO(run("compare", TEXT, "--with-text", OTHER, "--csv").out)))
    assert [row["head"] for row in rows] == [each.head.name for each in seen.ranking]
    out = run("compare", TEXT, "--with-text", OTHER).out
    assert out.index("cat sat") < out.index("dog sat")
    top = seen.ranking[0].head.name
    assert f"--head {top}" in out
    assert (
        f"{top} · own · the second text minus the first"
        in run("compare", TEXT, "--with-text", OTHER, "--head", top).out
    )


def test_the_kind_of_attention_stays_in_the_commands_that_are_offered(run, pair_folder):
    target = "A small tokenizer"
    out = run("compare", TEXT, "--second", target, "-m", pair_folder, "--kind", "cross").out
    (line, *_) = (line for line in out.splitlines() if "attnscope compare" in line)
    assert "--kind cross" in line
    one, other = line.split()[-2:]
    found = numbers(run, TEXT, one, other, "--second", target, "-m", pair_folder, "--kind", "cross")
    assert (found["kind"], found["heads"]) == ("cross", [one, other])


def test_two_models_of_one_shape(run, own):
    found = numbers(run, TEXT, "--with-model", "own")
    assert found["drift"] == pytest.approx([0] * 32, abs=1e-6)
    assert "Heads that drifted most" in run("compare", TEXT, "--with-model", "own").out


def test_two_models_of_other_shapes(run, own):
    real = load(minilm())
    seen = compare_models(own, real, [(own.prepare(TEXT), real.prepare(TEXT))], Selection())
    found = numbers(run, TEXT, "--with-model", minilm())
    assert found["drift"] is None
    assert [(m["one"], m["other"]) for m in found["matches"]] == [
        (pair.one.name, pair.other.name) for pair in seen.matches
    ]
    out = run("compare", TEXT, "--with-model", minilm()).out
    assert "L2H1 L0H2" in out
    assert max(map(len, out.splitlines())) <= 80


def test_many_texts(run, own, tmp_path):
    texts = [TEXT, OTHER, "Heads look at words."]
    path = tmp_path / "texts.txt"
    path.write_text("\n".join(texts))
    seen = compare_all_heads(own, [own.prepare(text) for text in texts])
    found = numbers(run, "--texts", path)
    assert (found["texts"], found["stability"]) == (3, pytest.approx(seen.stability, abs=1e-6))
    assert np.array(found["error"]) == pytest.approx(seen.error, abs=1e-6)
    out = run("compare", "--texts", path).out
    assert "mean over 3 texts" in out
    assert "±" in out
    assert numbers(run, "--texts", path, "--with-model", "own")["texts"] == 3


def test_feeds_names_the_heads_that_feed_one_from_the_weights_alone(run):
    ran = run("compare", "L1H0", "--composition", "-m", "own-causal")
    assert ran.code == 0
    assert "what feeds the keys of L1H0 · K-composition" in ran.out
    start = next(number for number, line in enumerate(ran.out.splitlines()) if line.startswith("head "))
    listed = [line.split() for line in ran.out.splitlines()[start + 1 : start + 13]]
    assert ["L0H0", "keys", "of", "L1H0", "0.116", "0.088", "±0.002"] in listed
    assert [each[1] for each in listed] == ["queries"] * 4 + ["keys"] * 4 + ["values"] * 4
    scores = [float(each[4]) for each in listed]
    assert all(scores[way : way + 4] == sorted(scores[way : way + 4], reverse=True) for way in (0, 4, 8))


def test_feeds_of_all_heads_are_ranked_and_printed_as_json_and_csv(run):
    words = ("compare", "--composition", "-m", "own-causal")
    seen = json.loads(run(*words, "--json").out)["feeds"]
    assert len(seen) == 144
    lifts = [each["score"] - each["baseline"] for each in seen]
    assert lifts == sorted(lifts, reverse=True)
    assert len(run(*words, "--csv").out.splitlines()) == 145
