"""Conditions on a hit count: `3` or `== 3`, `>= 3`, `> 3`, `< 3`, `<= 3`, `% 3`."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from typing import Final

from djinn_jupyter.errors import InvalidCondition

Holds = Callable[[int], bool]
_SPELLED = re.compile(r"^\s*(==|>=|<=|>|<|%)?\s*(\d{1,18})\s*$")
_COMPARE: Final[dict[str, Callable[[int, int], bool]]] = {
    "==": operator.eq,
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
    "%": lambda hits, every: hits % every == 0,
}


def read_hits(text: str | None) -> Holds | None:
    """Return the predicate that a hit condition spells, or None for empty text; InvalidCondition for other text."""
    if text is None or not text.strip():
        return None
    matched = _SPELLED.match(text)
    if matched is None or (matched[1] == "%" and int(matched[2]) == 0):
        raise InvalidCondition(f"{text!r} is no condition on a hit count; write 3, >= 3 or % 3.")
    compare, limit = _COMPARE[matched[1] or "=="], int(matched[2])
    return lambda hits: compare(hits, limit)
