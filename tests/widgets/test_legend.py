"""A picture's legend counts what lies across it."""

from __future__ import annotations

import numpy as np
import pytest

from djinn_jupyter.widgets.pictures import signed
from djinn_jupyter.widgets.stop import legend


@pytest.mark.parametrize(("across", "said"), [(1, ">1 dimension<"), (2, ">2 dimensions<")])
def test_one_feature_is_one_dimension(across: int, said: str) -> None:
    values = np.ones((3, across), np.float32)
    assert said in str(legend(signed(values, 128), across))
