"""Every measure and every role explains itself."""

import pytest

from attnscope.attention import Token
from attnscope.errors import SelectionError
from attnscope.measures import MEASURES, ROLES, explain
from attnscope.measures.block import is_punctuation


@pytest.mark.parametrize("name", MEASURES)
def test_a_measure_explains_its_formula_unit_rows_and_source(name):
    text = explain(name)
    entry = MEASURES[name]
    for part in (entry.formula, entry.unit, entry.bounds, entry.rows, entry.source, entry.summary):
        assert part
        assert part in text


@pytest.mark.parametrize("name", ROLES)
def test_a_role_explains_its_threshold(name):
    assert explain(name)


def test_thresholds_are_printed_as_defined():
    for name, told in (("previous", "least 0.5"), ("first", "least 0.6"), ("induction", "least 0.4")):
        assert f"at {told}" in explain(name)
    assert "exceeds 0.9" in explain("broad")


def test_an_unknown_name_says_what_exists():
    roles = f"; roles are {', '.join(ROLES)}; weighings are norm"
    with pytest.raises(SelectionError, match=rf"did you mean 'normalized_entropy'.*{roles}"):
        explain("normalised_entropy")


def test_an_explanation_reads_as_a_whole():
    assert explain("entropy") == (
        "entropy: Shannon entropy of the row.\n"
        "  formula   -Σ_j A log A\n"
        "  unit      nats, 0 to log n\n"
        "  average   over rows with at least two open keys\n"
        "  baseline  the same on even attention, 1/n_i on each of the n_i open keys\n"
        "  source    Clark et al. 2019, What Does BERT Look At?"
    )
    assert explain("duplicate").endswith(
        "\n  needs     queries and keys on one sequence and token labels\n"
        "  source    TransformerLens, head detector (duplicate token heads)\n"
        "  role      a head looks at the same token elsewhere when this is at least 0.4, at least 0.1 and\n"
        "            5 times what chance could do above the baseline, in 3 rows or more with a choice,\n"
        "            and no other pattern stands farther above its baseline"
    )
    assert "\n  needs     queries and keys on one sequence\n" in explain("previous")
    assert "\n  needs     token labels\n" in explain("special")


def test_what_counts_as_punctuation():
    for text in (".", " ,", "...", "—", "?!", "。", "(", "„"):
        assert is_punctuation(Token(text, 0)), text
    for text in ("", " ", "a.", "cat", "$", "😀", "'s", "1"):
        assert not is_punctuation(Token(text, 0)), text
    assert not is_punctuation(Token("<>", 0, special=True))
    assert not is_punctuation(Token("...", 0, special=True))
