"""Layers compared by their heads, against loops over distances of eager attention."""

import csv
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from scipy.spatial.distance import jensenshannon

from attnscope.models import load
from attnscope.progress import listening
from attnscope.questions.compare import compare_all_heads, decimals_for, heads_answer
from attnscope.questions.compare_layers import compare_layers
from attnscope.questions.compare_texts_models import compare_models
from attnscope.questions.layers import whole_layers
from attnscope.questions.selection import Selection
from attnscope.views.heads import DistanceMap, HeadDistances
from tests.measures.rounding import near
from tests.models.folders import eager_minilm, gpt2, minilm

TEXT = "The cat sat on the mat because it was tired."


@pytest.fixture(scope="module")
def eager():
    """Distances of all heads of that MiniLM by its own account.  [layer, head, other layer, other head]"""
    maps = np.concatenate(eager_minilm(TEXT))
    apart = jensenshannon(maps[:, None], maps[None], axis=-1) ** 2  # [head, other, query]
    return apart.mean(-1).reshape(6, 12, 6, 12)


@pytest.fixture(scope="module")
def layers():
    model = load(minilm())
    return compare_layers(compare_all_heads(model, model.prepare(TEXT)))


def test_layer_distances_agree_with_loops_over_eager_heads(layers, eager):
    assert layers.layers == layers.others == tuple(range(6))
    for one, other in product(range(6), repeat=2):
        cells = [
            eager[one, head, other, theirs]
            for head, theirs in product(range(12), repeat=2)
            if (one, head) != (other, theirs)
        ]
        assert layers.mean[one, other] == near(np.mean(cells), "entropy", 13)
        assert layers.nearest[one, other] == near(min(cells), "entropy", 13)
        if one <= other:
            (pair,) = [each for each in layers.pairs if (each.layer, each.other) == (one, other)]
            assert pair.farthest == near(max(cells), "entropy", 13)
            found = eager[one, pair.head.head, other, pair.other_head.head]
            assert found == near(min(cells), "entropy", 13)
    assert len(layers.pairs) == 21


def test_each_head_continues_in_the_nearest_of_the_next_layer(layers, eager):
    assert len(layers.continued) == 5 * 12
    assert [each.distance for each in layers.continued] == sorted(each.distance for each in layers.continued)
    for pair in layers.continued:
        assert pair.other.layer == pair.one.layer + 1
        apart = eager[pair.one.layer, pair.one.head, pair.other.layer]
        assert apart[pair.other.head] == near(apart.min(), "entropy", 13)


def test_two_models_have_layers_of_the_first_down_and_of_the_second_across(own):
    other = load(minilm())
    whole = compare_models(own, other, [(own.prepare(TEXT), other.prepare(TEXT))])
    result = compare_layers(whole)
    blocks = whole.distances.reshape(4, 8, 6, 12)
    np.testing.assert_allclose(result.mean, blocks.mean((1, 3)))
    np.testing.assert_allclose(result.nearest, blocks.min((1, 3)))
    assert (len(result.pairs), len(result.continued)) == (24, 32)
    for pair in result.continued:
        assert pair.distance == whole.distances[whole.heads.index(pair.one)].min()


def test_layer_of_one_head_has_no_distance_from_itself(tmp_path):
    model = load(gpt2(tmp_path / "single", n_head=1, n_layer=3))
    result = compare_layers(compare_all_heads(model, model.prepare("the cat sat")))
    assert np.isnan(result.mean.diagonal()).all()
    assert not np.isnan(result.mean[0, 1:]).any()
    assert any("0 from itself" in note for note in result.maps["nearest"].notes)


def test_layer_commands_print_maps_spread_and_every_pair(run, tmp_path):
    asked = ("compare", TEXT, "--by", "layer")
    numbers, out = run.json(*asked), run(*asked).out
    assert numbers["mean"][0][0] == pytest.approx(numbers["pairs"][0]["mean"])
    rows = [line.split()[1:] for line in out.splitlines() if line.startswith("L0  0.")]
    for row, name in zip(rows, ("mean", "nearest"), strict=True):
        assert row == [f"{value:.2f}" for value in numbers[name][0]]
    lines = out.splitlines()
    spread = next(line.split() for line in lines[lines.index("Layers most alike") :] if line[:6] == "L2    ")
    (own,) = [each for each in numbers["pairs"] if each["layer"] == each["other"] == 2]
    assert [spread[0], *spread[3:5]] == ["L2", own["head"], own["other_head"]]
    for shown, name in zip((spread[1], spread[2], spread[5]), ("mean", "nearest", "farthest"), strict=True):
        assert float(shown) == pytest.approx(own[name], abs=6e-4)
    listed = list(csv.DictReader(run(*asked, "--csv").out.splitlines()))
    assert [float(each["nearest"]) for each in listed] == pytest.approx(
        [each["nearest"] for each in numbers["pairs"]]
    )
    opened = next(line.split("'") for line in out.splitlines() if "attnscope compare" in line)
    assert "--by" not in opened[0]
    assert run(*asked, "-o", tmp_path / "layers.npz").code == 0
    with np.load(tmp_path / "layers.npz") as file:
        np.testing.assert_allclose(file["mean"], numbers["mean"], rtol=1e-6)


def test_one_head_number_keeps_layers_in_order(own):
    view = compare_all_heads(own, own.prepare(TEXT), Selection(number=3)).view
    assert view.table.rows == ("L0H3", "L1H3", "L2H3", "L3H3")
    assert view.table.groups == ()


@pytest.mark.parametrize("text", [TEXT, "The cat sat on the mat.", "The cat sat."])
def test_note_counts_clusters_and_heads_alone(own, text):
    seen = compare_all_heads(own, own.prepare(text))
    sizes = [len(group) for group in seen.grouped_heads]
    clusters, alone = sum(size > 1 for size in sizes), sizes.count(1)
    named = f"{clusters} cluster{'s' * (clusters > 1)}"
    if alone:
        named += f" of {32 - alone} heads, and {alone} that resemble{'s' * (alone == 1)} no other"
    assert seen.view.table.notes[0].startswith(f"{named} (average linkage")
    for silhouette, unclear in ((0.25, True), (0.26, False)):
        vars(seen)["groups"] = replace(seen.groups, silhouette=silhouette)
        told = seen.view.table.notes[0]
        assert told.endswith("no clear structure)") == unclear


def test_sheet_is_the_table_alone_and_points_come_on_request(own):
    result = compare_all_heads(own, own.prepare(TEXT))
    alone, both = (heads_answer(result, None, scatter=scatter).picture for scatter in (False, True))
    assert isinstance(alone, DistanceMap)
    assert isinstance(both, HeadDistances)


def test_encoder_and_decoder_are_compared_row_by_row():
    models = load("own"), load("own-causal")
    seen = compare_models(*models, [tuple(each.prepare(TEXT) for each in models)])
    assert (seen.kind, seen.other_kind, seen.units) == ("encoder", "decoder", "tokens")
    own, causal = (
        np.concatenate([weights.values for _, weights in layers]).astype(float)
        for each, kind in zip(models, ("encoder", "decoder"), strict=True)
        for layers in [whole_layers(each, each.prepare(TEXT), Selection()).kinds[kind]]
    )
    expected = (jensenshannon(own[:, None], causal[None], axis=-1) ** 2).mean(-1)
    np.testing.assert_allclose(seen.distances, expected, atol=1e-6)
    assert seen.drift is None
    assert "encoder attention is compared with decoder attention" in " ".join(seen.notes)
    layers = compare_layers(seen)
    blocks = expected.reshape(
        len(layers.layers), -1, len(layers.others), expected.shape[1] // len(layers.others)
    )
    np.testing.assert_allclose(layers.mean, blocks.mean((1, 3)), atol=1e-6)


def test_errors_of_layers_are_those_of_means_of_single_texts():
    model = load("own")
    texts = [model.prepare(text) for text in (TEXT, "A dog barked.", "It slept on the old mat.")]
    together = compare_layers(compare_all_heads(model, texts))
    single = [compare_layers(compare_all_heads(model, text)) for text in texts]
    for number, pair in enumerate(together.pairs):
        means = [each.pairs[number].mean for each in single]
        assert pair.mean == pytest.approx(np.mean(means), abs=1e-9)
        assert pair.mean_error == pytest.approx(np.std(means, ddof=1) / np.sqrt(3), abs=1e-9)
        assert 0 < pair.mean_error < pair.mean
        assert single[0].pairs[number].mean_error == 0


def test_layers_need_no_clusters_and_report_progress(own, monkeypatch):
    for name in ("group_heads", "embed_in_plane"):
        monkeypatch.delattr(f"attnscope.comparison.{name}")
    seen = []
    with listening(lambda *words: seen.append(words)):
        compare_layers(compare_all_heads(own, own.prepare(TEXT)))
    assert ("comparing head", 32, 32) in seen


def test_most_alike_layers_have_the_smallest_means(run):
    asked = ("compare", TEXT, "--by", "layer")
    out, pairs = run(*asked).out, run.json(*asked)["pairs"]
    others = [each for each in pairs if each["layer"] != each["other"]]
    first = min(others, key=lambda each: each["mean"])
    lines = [line for line in out.splitlines() if line]
    assert lines[0] == "Layers most alike"
    assert lines[1].split()[:3] == [f"L{first['layer']}", f"L{first['other']}", f"{first['mean']:.3f}"]
    means = [np.mean([e["mean"] for e in others if at in (e["layer"], e["other"])]) for at in range(4)]
    farthest = next(line for line in lines if line.startswith("· farthest from all other layers"))
    assert farthest.split(": ")[1].startswith(f"L{np.argmax(means)} (")


def test_by_head_lists_a_successor_of_every_head(run):
    asked = ("compare", TEXT, "--by", "head")
    listed = list(csv.DictReader(run(*asked, "--csv").out.splitlines()))
    assert len({each["one"] for each in listed}) == 3 * 8
    for each in listed:
        assert int(each["other"][1]) == int(each["one"][1]) + 1
    best = listed[0]["one"], listed[0]["other"]
    assert best in [tuple(line.split()[:2]) for line in run(*asked).out.splitlines()]
    chain = run.json("compare", TEXT, "L0H3")["chain"]
    assert [pair["one"] for pair in chain] == ["L0H3", *(pair["other"] for pair in chain[:-1])]
    for pair in chain:
        assert (pair["one"], pair["other"]) in [(each["one"], each["other"]) for each in listed]


@pytest.mark.parametrize(
    ("distances", "decimals"), [([0.5, 0.012], 3), ([0.0, 0.0021], 4), ([0.2, 2e-5], 6), ([], 3)]
)
def test_smallest_distance_of_a_column_has_two_digits(distances, decimals):
    assert decimals_for(distances) == decimals
