"""``attnscope logits``: what it prints, saves and refuses."""

import pytest

from tests.questions.intervention.shapes import saved
from tests.questions.test_logits import TEXT


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return saved(tmp_path_factory.mktemp("gpt2"), "gpt2")


def test_groups_and_parts_each_sum_to_the_score(run, folder):
    ran = run("logits", TEXT, "-m", folder, "--target", "mat", "--against", "cat")
    assert ran.code == 0
    groups, parts, *_ = (block.splitlines() for block in ran.out.split("\n\n")[1:])
    values = {line[: line.rindex("  ", 0, 20)].strip(): float(line.split()[-2]) for line in groups}
    *terms, score = values.values()
    assert list(values) == ["heads", "feed-forward", "embeddings", "biases", "= the score"]
    assert sum(terms) == pytest.approx(score, abs=0.01)
    assert parts[0] == "one by one"
    assert sum(line.startswith("L") for line in parts) >= 5  # the heads whose words are told below
    assert sum(float(line.split()[-2]) for line in parts[1:]) == pytest.approx(score, abs=0.02)
    assert "the prediction: 'mat'" in ran.out
    assert "over 'cat'" in ran.out
    assert "the scale of every norm" in " ".join(ran.out.split())


def test_json_has_every_part_and_the_words_of_one_head(run, folder):
    seen = run.json("logits", TEXT, "-m", folder, "--head", "L1H2")
    effects = [each["effect"] for each in (*seen["heads"], *seen["feed_forward"])]
    total = sum(effects) + seen["embeddings"] + seen["biases"] + seen["rest"]
    assert len(effects) == 10
    assert total == pytest.approx(seen["score"], abs=1e-5)
    assert seen["mixers"] == []
    (words,) = seen["words"]
    assert (words["layer"], words["head"]) == (1, 2)
    assert all(word["moved"] > 0 for word in words["raised"])
    assert all(word["moved"] < 0 for word in words["lowered"])


def test_the_words_of_a_head_are_printed_in_any_width(run, folder, monkeypatch):
    for width in (80, 160):
        monkeypatch.setenv("COLUMNS", str(width))
        ran = run("logits", TEXT, "-m", folder, "--head", "L1H2")
        assert "L1H2  raises" in ran.out
        assert max(map(len, ran.out.splitlines())) <= width


def test_a_picture_is_saved(run, folder, tmp_path):
    run("logits", TEXT, "-m", folder, "-o", tmp_path / "writes.png", "--dpi", "50")
    assert (tmp_path / "writes.png").exists()


def test_by_layer_prints_a_line_a_layer_with_the_rank_of_the_target(run, folder):
    asked = ("logits", TEXT, "-m", folder, "--by", "layer", "--target", "mat")
    ran = run(*asked)
    layers = run.json(*asked)["layers"]
    lines = [line.split() for line in ran.out.splitlines() if line.strip()[:1].isdigit()]
    assert [line[:3] for line in lines] == [
        [str(each["layer"]), f"{each['rank']:,}", f"{each['log_probability']:.2f}"] for each in layers
    ]


def test_prompts_fill_the_slots_of_text_and_target(run, folder, tmp_path):
    table = tmp_path / "names.csv"
    table.write_text("A,B\ncat,mat\nmat,cat\n")
    asked = ("logits", "The {A} sat on the", "-m", folder, "--target", "{B}", "--prompts", table)
    seen = run.json(*asked)
    assert len(seen["heads"]) == 8
    assert all(head["error"] >= 0 for head in seen["heads"])
    printed = run(*asked).out
    assert "the mean of 2 prompts of “The {A} sat on the”" in " ".join(printed.split())
    assert " ±0.0" in printed
    assert "mean of 2 prompts" in run(*asked, "--by", "layer").out
