"""The comparison of every recheck: what no number is in both is equal, and in one alone it is not."""

from __future__ import annotations

import math

import torch

from djinn_jupyter.engine.passes.shared_cache import difference, equal_but_for_rounding

NAN, INF = math.nan, math.inf


def test_values_that_are_no_numbers_are_compared_as_they_stand() -> None:
    one, other = torch.tensor([1.0, NAN, INF, NAN, -INF, INF]), torch.tensor([1.5, NAN, INF, 2.0, INF, NAN])
    assert difference(one, other).tolist() == [-0.5, 0.0, 0.0, INF, INF, INF]


def test_rows_of_nan_agree_with_the_same_rows_alone_and_with_no_others() -> None:
    row = torch.tensor([[1.0, 2.0, NAN, -INF]])
    assert equal_but_for_rounding(row, row + 1e-6, torch.float32)
    assert not equal_but_for_rounding(row, row + 0.1, torch.float32)
    assert not equal_but_for_rounding(row, row.nan_to_num(nan=0.0), torch.float32)
    assert not equal_but_for_rounding(row.nan_to_num(nan=0.0), row, torch.float32)
    assert not equal_but_for_rounding(row, -row, torch.float32)
