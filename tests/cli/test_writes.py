"""``attnscope show --writes``: what it prints, saves and refuses."""

import json

import pytest

from tests.analysis.test_writes import FOLLOWED, TEXT, saved


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return saved(tmp_path_factory.mktemp("gpt2"), FOLLOWED["gpt2"]())


def test_a_map_of_the_heads_and_a_table_that_sums_to_the_score(run, folder):
    ran = run("show", TEXT, "-m", folder, "--writes", "--target", "mat", "--over", "cat")
    assert ran.code == 0
    lines = ran.out.splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("part "))
    end = next(number for number, line in enumerate(lines) if line.startswith("the score"))
    parts = [float(line.split()[-1]) for line in lines[start + 1 : end]]
    assert sum(parts) == pytest.approx(float(lines[end].split()[-1]), abs=0.01)
    assert "the prediction: 'mat'" in ran.out
    assert "over 'cat'" in ran.out


def test_json_has_every_part(run, folder):
    seen = json.loads(run("show", TEXT, "-m", folder, "--writes", "--json").out)
    effects = [each["effect"] for each in (*seen["heads"], *seen["feed_forward"])]
    total = sum(effects) + seen["embeddings"] + seen["biases"] + seen["output_bias"]
    assert len(effects) == 10
    assert total == pytest.approx(seen["score"], abs=1e-5)


def test_a_picture_is_saved(run, folder, tmp_path):
    run("show", TEXT, "-m", folder, "--writes", "-o", tmp_path / "writes.png", "--dpi", "50")
    assert (tmp_path / "writes.png").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--writes", "--head", "L0H1"), "it is of all heads"),
        (("--writes", "--weigh", "norm"), "it is of all heads"),
        (("--over", "cat"), "it goes with --writes"),
    ],
)
def test_what_makes_no_sense_is_refused(run, folder, words, said):
    ran = run("show", TEXT, "-m", folder, *words)
    assert ran.code == 2
    assert said in " ".join(ran.err.split())
