"""``--faithful`` on flow and stats: what it prints, saves and refuses."""

import json

TEXT = "The cat sat on the"
OWN = ("-m", "own-causal")


def test_flow_lists_every_way_with_random_orders_among_them(run):
    printed = run("flow", TEXT, *OWN, "--faithful").out
    title, prediction, _, header, alone, *lines = printed.splitlines()
    assert title.startswith("which tokens the prediction depends on · own-causal · “The cat sat on the”")
    assert prediction.startswith("the prediction: ")
    assert header.split() == ["order", "by", "deletion", "insertion", "first"]
    assert alone.startswith("one at a time")
    listed = lines[: next(number for number, line in enumerate(lines) if line.startswith("·"))]
    areas = [float(line[23:].split()[0]) for line in listed if not line.startswith("random")]
    assert areas == sorted(areas)
    names = {line[:23].strip() for line in listed}
    weighings = {f"--weigh {name}" for name in ("raw", "norm", "norm-residual", "zeroing", "gradient")}
    methods = {f"--method {name}" for name in ("rollout", "flow", "relevance", "alti")}
    assert names == weighings | methods | {"random order"}


def test_stats_lists_heads_and_what_they_are_weighed_by(run):
    seen = json.loads(run("stats", TEXT, *OWN, "--faithful", "--weigh", "norm", "--layer", "1", "--json").out)
    assert {each["name"] for each in seen["ranked"]} == {"L1H0", "L1H1", "L1H2", "L1H3", "all heads"}
    assert seen["weigh"] == "norm"
    areas = [each["deletion_area"] for each in seen["ranked"]]
    assert areas == sorted(areas)
    printed = run("stats", TEXT, *OWN, "--faithful", "--top", "2", "--target", "mat").out
    assert "and 11 more" in printed
    assert "'mat'" in printed.splitlines()[1]


def test_the_curves_are_saved(run, tmp_path):
    assert run("flow", TEXT, *OWN, "--faithful", "-o", tmp_path / "curves.png", "--dpi", "50").code == 0
    assert run("stats", TEXT, *OWN, "--faithful", "-o", tmp_path / "heads.svg").code == 0
    assert (tmp_path / "curves-insertion.png").is_file()
    drawn = (tmp_path / "heads-deletion.svg").read_text()
    assert "deletion" in drawn
    assert "random order" in drawn
