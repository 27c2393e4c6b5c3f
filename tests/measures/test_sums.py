"""Sums become figures: averages and standard errors over texts, each computed a second way."""

import numpy as np
import pytest
import torch

from attnscope.measures.measurement import Sums


def sums_of(rows, values, lone_rows=None, lone_values=None) -> Sums:
    """One measure of one head; an entry a text. The baseline is a tenth of the value."""

    def part(rows, values):
        stacked = np.stack([rows, values, np.asarray(values) / 10]).astype(float)
        return torch.from_numpy(stacked)[:, None, :, None]  # [rows|value|baseline, measure, text, head]

    nothing = np.zeros(len(rows))
    lone = part(nothing if lone_rows is None else lone_rows, nothing if lone_values is None else lone_values)
    return Sums.of_texts(part(rows, values), lone)


def figure_of(sums: Sums, lone: bool = True):
    ((figure,),) = sums.figures(lone)
    return figure


def test_the_standard_error_is_that_of_a_ratio_of_sums_over_texts():
    rows, values = np.array([4.0, 9.0, 6.0]), np.array([1.0, 5.0, 2.5])
    figure = figure_of(sums_of(rows, values))
    ratio = values.sum() / rows.sum()
    error = np.sqrt(3 / 2 * ((values - ratio * rows) ** 2).sum()) / rows.sum()
    assert figure.value == pytest.approx(ratio)
    assert figure.baseline == pytest.approx(ratio / 10)
    assert (figure.rows, figure.texts) == (19, 3)
    assert figure.error == pytest.approx(error)


def test_texts_of_equal_length_have_the_usual_standard_error_of_a_mean():
    means = np.array([0.2, 0.5, 0.1, 0.7])
    figure = figure_of(sums_of(np.full(4, 10.0), 10 * means))
    assert figure.error == pytest.approx(means.std(ddof=1) / np.sqrt(4))


def test_two_texts_have_an_error_and_one_has_none():
    assert figure_of(sums_of([3.0], [1.0])).error is None
    assert figure_of(sums_of([3.0, 3.0], [1.0, 2.0])).error == pytest.approx(1 / 6)
    assert figure_of(sums_of([3.0, 3.0], [1.5, 1.5])).error == pytest.approx(0, abs=1e-12)
    assert figure_of(sums_of([3.0, 0.0], [1.0, 0.0])).error is None, "a text without rows is no text"


def test_rows_without_a_choice_count_unless_they_are_left_out():
    sums = sums_of([2.0, 2.0], [1.0, 0.5], [1.0, 1.0], [1.0, 1.0])
    everything, chosen = figure_of(sums), figure_of(sums, lone=False)
    assert (everything.value, everything.rows) == (pytest.approx(3.5 / 6), 6)
    assert (chosen.value, chosen.rows) == (pytest.approx(1.5 / 4), 4)
    assert everything.baseline == pytest.approx(0.35 / 6)
    assert chosen.baseline == pytest.approx(0.15 / 4)
    assert chosen.error is None


def test_sums_of_two_halves_are_the_sums_of_the_whole():
    whole = sums_of([4.0, 9.0, 6.0], [1.0, 5.0, 2.5])
    half = sums_of([4.0], [1.0]) + sums_of([9.0, 6.0], [5.0, 2.5])
    assert figure_of(half) == figure_of(whole)


def test_nothing_that_counted_has_no_figure():
    assert figure_of(sums_of([0.0], [0.0])) is None


def test_written_down_and_read_back_they_are_the_same():
    sums = sums_of([4.0, 9.0], [1 / 3, 5.0])
    again = Sums.from_state(sums.state())
    assert figure_of(again) == figure_of(sums)
    assert again.numbers.dtype == torch.float64
