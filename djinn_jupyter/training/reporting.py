"""Reports on a training while it goes on."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

Report = Callable[[int, int, Tensor], None]
"""It is given the steps done, of how many, and the loss of the last."""
