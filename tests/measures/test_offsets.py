"""``offset=K``: the weight on the token K places away, wherever measures are named."""

import csv
import io
import json

import pytest
import torch
import transformers

from tests.models.folders import gpt2

LINE = "The cat sat on the mat because it was tired."
TEXTS = {"a short text": LINE, "a long text": LINE * 60}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return gpt2(tmp_path_factory.mktemp("gpt2"), n_positions=1200, n_layer=1)


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_it_equals_a_diagonal_of_the_models_own_weights_with_and_without_the_fused_pass(run, folder, text):
    model = transformers.AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
    inputs = transformers.AutoTokenizer.from_pretrained(folder)(text, return_tensors="pt")
    with torch.inference_mode():
        weights = model(**inputs, output_attentions=True).attentions[0][0].double()  # [head, query, key]
    ran = run("stats", text, "-m", folder, "--sort", "offset=-3", "--where", "offset=-2>=0", "--json")
    heads = {head["head"]: head["figures"] for head in json.loads(ran.out)["heads"]}
    for step in (-3, -2):
        expected = weights.diagonal(step, 1, 2).mean(-1)
        even = [1 / (row + 1) for row in range(-step, weights.shape[1])]
        for head, figures in heads.items():
            figure = figures[f"offset={step}"]
            assert figure["value"] == pytest.approx(float(expected[head]), abs=1e-6)
            assert figure["baseline"] == pytest.approx(sum(even) / len(even), abs=1e-6)


def test_it_is_the_previous_and_the_next_token_at_one_place(run):
    asked = ("stats", LINE, "--where", "offset=-1>=0 and offset=+1>=0 and offset=0>=0", "--csv")
    for row in csv.DictReader(io.StringIO(run(*asked).out)):
        assert row["offset=-1"] == row["previous"]
        assert row["offset=+1"] == row["next"]
        assert row["offset=0"] == row["self"]


def test_it_can_be_claimed_explained_and_drawn(run):
    assert run("check", "L2H1.offset=-1 > 0.9", "--text", LINE).code == 0
    assert run("check", "any.offset=-2 > 0.9", "--text", LINE).code == 1
    assert "A[i, i-2]" in run("stats", "--explain", "offset=-2").out
    assert "offset=-2 · encoder" in run("stats", LINE, "--map", "offset=-2").out


def test_a_distance_beyond_the_text_has_no_figure_and_says_why(run):
    run("stats", LINE, "--map", "offset=-400").refuses(
        "offset=-400 cannot be drawn: offset=-400 is taken over rows for which that key exists"
    )
