from __future__ import annotations

import numpy as np
import pytest

from djinn_evaluation.benchmarks import generating
from djinn_evaluation.benchmarks.harness import Disagreement


def test_a_collection_fails_when_a_row_is_another_prompts() -> None:
    rows = np.eye(3, dtype=np.float32)
    generating.require_near(rows, rows * (1 + 1e-5))
    with pytest.raises(Disagreement, match="Row 0 of the collection"):
        generating.require_near(rows[[1, 0, 2]], rows)
    with pytest.raises(Disagreement, match="Row 2"):
        generating.require_near(rows * [[1], [1], [np.nan]], rows)
