"""A misspelled name is answered with the nearest one that exists, wherever names are typed."""

import pytest

TEXT = "The cat sat on the mat because it was tired."


@pytest.mark.parametrize(
    ("arguments", "near"),
    [
        (["show", TEXT, "-m", "own-casual", "--offline"], "own-causal"),
        (["compare", TEXT, "--with-model", "own-casual", "--offline"], "own-causal"),
        (["loss", "own_causal", __file__, "--offline"], "own-causal"),
        (["show", TEXT, "--kind", "encdoer"], "encoder"),
        (["show", TEXT, "--token", "trired"], "tired"),
        (["show", TEXT, "--cmap", "viridi"], "viridis"),
        (["stats", TEXT, "--sort", "entrpy"], "entropy"),
        (["stats", TEXT, "--map", "entrpy"], "entropy"),
        (["stats", TEXT, "--where", "entrpy<1"], "entropy"),
        (["stats", TEXT, "--where", "role=previos"], "previous"),
        (["stats", "--explain", "entropi"], "entropy"),
        (["stats", "--explain", "positonal"], "positional"),
        (["check", "any.frist > 0.5", "--text", TEXT], "first"),
        (["check", "L2H1.role = previos", "--text", TEXT], "previous"),
    ],
)
def test_the_nearest_name_is_asked_about(run, arguments, near):
    ran = run(*arguments)
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1), ran.err
    assert f"did you mean '{near}'? " in ran.err


def test_a_kind_that_exists_elsewhere_is_not_asked_about(run):
    assert (
        "no decoder attention: this model has encoder attention" in run("show", TEXT, "--kind", "decoder").err
    )


@pytest.mark.parametrize(
    ("old", "new"), [("span", "effective_keys"), ("spread", "normalized_entropy"), ("sink", "no_key")]
)
@pytest.mark.parametrize(
    "option", ["--sort {}", "--map {}", "--where {}<1", "--explain {}", "check any.{}<1"]
)
def test_a_renamed_measure_is_refused_with_its_new_name(run, option, old, new):
    command, *rest = option.format(old).split()
    ran = run("check", *rest, "--text", TEXT) if command == "check" else run("stats", TEXT, command, *rest)
    assert (ran.code, ran.out) == (2, "")
    assert f"the measure '{old}' is now '{new}'" in ran.err


def test_a_kind_is_no_measure_to_sort_by(run):
    run("stats", TEXT, "--sort", "kind").refuses("no measure 'kind': there are entropy")
