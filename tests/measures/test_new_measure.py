"""A measure of one function works everywhere, offset=K too, and every measure has an explanation."""

import csv
import io

import pytest
from transformers import AutoTokenizer

from attnscope.attention import Token
from attnscope.errors import SelectionError
from attnscope.measures import MEASURES, ROLES, explain, fused_request, measure
from attnscope.measures.block import is_punctuation
from attnscope.measures.forms import AtKey, OfWeights
from tests.models.folders import eager, gpt2

LINE = "The cat sat on the mat because it was tired."
LONG = LINE * 60


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return gpt2(tmp_path_factory.mktemp("gpt2"), n_positions=1200, n_layer=1)


@pytest.fixture(autouse=True)
def new_measures(monkeypatch):
    monkeypatch.setattr(MEASURES, "_entries", dict(MEASURES))

    @measure("skip", AtKey, formula="A[i, i-2]", source="a test")
    def skip(position):
        """Weight on the token before the previous one.  -> [batch, head, row]"""
        return position - 2

    @measure("median", OfWeights, formula="median of A", source="a test")
    def median(block):
        """Median weight of the row.  -> [batch, head, row]"""
        return block.rows.median(-1).values


def eager_means(folder, text):
    """Both measures of each head from the model's own weights.  -> {name: [head]}"""
    inputs = AutoTokenizer.from_pretrained(folder)(text, return_tensors="pt")
    weights = eager(folder, **inputs).attentions[0][0].double()  # [head, query, key]
    skip, median = weights.diagonal(-2, 1, 2), weights[:, 1:].median(-1).values
    return {"skip": skip.mean(-1).tolist(), "median": median.mean(-1).tolist()}


@pytest.mark.parametrize("text", [LINE, LONG], ids=["a short text", "a long text"])
@pytest.mark.parametrize("name", ["skip", "median"])
def test_new_measure_is_measured_sorted_and_printed(run, folder, name, text):
    wanted = eager_means(folder, text)[name]
    asked = "stats", text, "-m", folder, "--sort", name
    values = {head["head"]: head["scores"][name]["value"] for head in run.json(*asked)["heads"]}
    assert [values[head] for head in range(4)] == pytest.approx(wanted, abs=1e-6)
    assert list(values.values()) == sorted(values.values(), reverse=True)
    rows = csv.DictReader(io.StringIO(run(*asked, "--csv").out))
    assert [float(row[name]) for row in rows] == pytest.approx(list(values.values()), abs=1e-9)
    assert name in run(*asked).out


def test_new_measure_without_statistics_skips_the_fused_pass(run, folder):
    assert "fused pass" in run("stats", LONG, "-m", folder, "--sort", "skip").out
    for name in ("median", "coverage90"):
        out = run("stats", LONG, "-m", folder, "--sort", name).out
        assert "fused pass" not in out
        assert fused_request([name], []) is None


def test_new_measure_selects_explains_and_has_standard_error(run, folder, tmp_path):
    middle = sorted(eager_means(folder, LINE)["skip"])[2]
    (tmp_path / "texts.txt").write_text(f"{LINE}\nThe dog ran to the park.\n{LONG}\n", "utf-8")
    assert len(run.json("stats", LINE, "-m", folder, "--where", f"skip>={middle - 1e-6}")["heads"]) == 2
    for head in run.json("stats", "--texts", tmp_path / "texts.txt", "-m", folder, "--sort", "skip")["heads"]:
        score = head["scores"]["skip"]
        assert (score["texts"], score["error"] > 0) == (3, True)
    explained = run("explain", "skip").out
    assert explained.startswith("skip: Weight on the token before the previous one.\n  formula   A[i, i-2]\n")
    assert "average   over rows whose key exists\n" in explained
    assert "skip" in run("explain").out


def test_offset_measure_works_in_every_command(run):
    same = {"offset=-1": "previous", "offset=+1": "next", "offset=0": "self"}
    asked = "stats", LINE, "--where", " and ".join(f"{name}>=0" for name in same), "--csv"
    for row in csv.DictReader(io.StringIO(run(*asked).out)):
        assert {name: row[other] for name, other in same.items()} == {name: row[name] for name in same}
    assert run("check", "L2H1.offset=-1 > 0.9", LINE).code == 0
    assert run("check", "any.offset=-2 > 0.9", LINE).code == 1
    assert "A[i, i-2]" in run("explain", "offset=-2").out
    assert "offset=-2 · encoder" in run("stats", LINE, "--map", "offset=-2").out
    run("stats", LINE, "--map", "offset=-400").refuses(
        "offset=-400 cannot be drawn: offset=-400 is averaged over rows for which that key exists"
    )


def test_every_measure_and_role_has_a_full_explanation():
    for name, entry in MEASURES.items():
        for part in (entry.formula, entry.unit, entry.bounds, entry.rows, entry.source, entry.summary):
            assert part
            assert part in explain(name), name
    assert all(map(explain, ROLES))
    told = {"previous": "at least 0.5", "first": "at least 0.6", "broad": "exceeds 0.9"}
    assert all(words in explain(name) for name, words in told.items())
    with pytest.raises(SelectionError, match=r"did you mean 'normalized_entropy'.*explain lists every word"):
        explain("normalised_entropy")


def test_explanation_of_entropy_is_complete():
    assert explain("entropy") == (
        "entropy: Shannon entropy of the row.\n"
        "  formula   -Σ_j A log A\n"
        "  unit      nats, 0 to log n\n"
        "  average   over rows with at least two unmasked keys\n"
        "  baseline  the same with uniform attention, 1/n_i on each of the n_i unmasked keys\n"
        "  source    Clark et al. 2019, What Does BERT Look At?"
    )
    assert explain("duplicate").endswith(
        "\n  needs     queries and keys on one sequence and token labels\n"
        "  source    TransformerLens, head detector (duplicate token heads)\n"
        "  role      a head attends to other occurrences of the token if this is at least 0.4,\n"
        "            exceeds the baseline by at least 0.1 and 5 standard errors of chance, in 3 rows\n"
        "            or more with two unmasked keys, and no other pattern exceeds its baseline by more"
    )


def test_punctuation_tokens():
    marks = {".", " ,", "...", "—", "?!", "。", "(", "„"}
    others = {"", " ", "a.", "cat", "$", "😀", "'s", "1"}
    assert {text for text in marks | others if is_punctuation(Token(text, 0))} == marks
    assert not is_punctuation(Token("...", 0, special=True))
