"""Statistics over pairs: those of a textbook, and what they say where there is nothing to find."""

from __future__ import annotations

import numpy as np
import pytest

from djinn_jupyter.errors import UsageError
from djinn_jupyter.methods.sweep.api.grid import statistics_of

DARWIN = np.array([6.1, -8.4, 1.0, 2.0, 0.7, 2.9, 3.5, 5.1, 1.8, 3.6, 7.0, 3.0, 9.3, 7.5, -6.0])  # Fisher 1935, inches


def told(values: np.ndarray, corrupted: np.ndarray | None = None, seed: int = 0):
    return statistics_of(values, np.zeros(len(values)) if corrupted is None else corrupted, 0.95, 9999, seed)


def test_the_test_of_signs_is_that_of_fisher() -> None:
    found = told(DARWIN[:, None])
    assert found.change == pytest.approx(2.6067, abs=1e-4)
    assert found.standard_error == pytest.approx(4.7128 / np.sqrt(15), abs=1e-3)
    assert found.p == pytest.approx(0.0528, abs=0.008)  # of all 2^15 signs; here of 9,999 drawn ones
    assert 0 < found.low[0] < 1 < 4 < found.high[0] < 5


def test_few_pairs_are_judged_by_all_their_signs() -> None:
    found = told(np.array([[1.0], [2.0], [3.0], [4.0]]))
    assert found.p == 2 / 16
    assert found.pairs == 4


def test_each_pair_is_compared_with_its_own_corrupted_line() -> None:
    corrupted = np.array([10.0, -10.0, 3.0])
    found = told(corrupted[:, None, None] + np.array([0.0, 1.0])[None, None, :], corrupted)
    assert found.change.tolist() == [[0.0, 1.0]]
    assert found.standard_error.tolist() == [[0.0, 0.0]]
    assert found.p.tolist() == [[1.0, 0.25]]
    assert found.mean.tolist() == [[1.0, 2.0]]


def test_the_seed_decides_the_draws() -> None:
    values = np.random.default_rng(3).normal(size=(20, 5))
    one, same, other = told(values, seed=1), told(values, seed=1), told(values, seed=2)
    assert np.array_equal(one.low, same.low)
    assert np.array_equal(one.p, same.p)
    assert not np.array_equal(one.low, other.low)


def test_where_there_is_no_effect_p_is_even() -> None:
    found = told(np.random.default_rng(5).normal(size=(10, 400)))
    assert np.mean(found.p < 0.05) == pytest.approx(0.05, abs=0.03)
    assert np.mean((found.low < 0) & (found.high > 0)) == pytest.approx(0.9, abs=0.06)  # of ten pairs, a little short


def test_cells_that_a_pair_does_not_have_are_judged_by_the_others() -> None:
    values = np.array([[1.0, 1.0, 1.0], [2.0, 2.0, np.nan], [3.0, np.nan, np.nan]])
    found = told(values)
    assert found.pairs.tolist() == [3, 2, 1]
    assert found.change[:2].tolist() == [2.0, 1.5]
    assert np.isnan([found.change[2], found.p[2], found.low[2], found.standard_error[2]]).all()


def test_fewer_than_five_pairs_have_no_interval() -> None:
    values = np.random.default_rng(1).normal(size=(5, 2))
    found = told(np.vstack([values, [1.0, np.nan]])[1:])
    assert found.pairs.tolist() == [5, 4]
    assert np.isnan(found.low).tolist() == np.isnan(found.high).tolist() == [False, True]
    assert not np.isnan([found.p, found.change, found.standard_error]).any()


def test_one_pair_has_no_statistics() -> None:
    with pytest.raises(UsageError, match="two or more pairs"):
        told(np.ones((1, 3)))
    with pytest.raises(UsageError, match="a confidence between 0 and 1"):
        statistics_of(np.ones((2, 3)), np.zeros(2), 95.0, 9999, 0)
