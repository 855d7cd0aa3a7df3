"""Pairs of lines, as users give them: one by one or in a file, with metrics of their own where they have some."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from djinn_jupyter.client.prompts import records
from djinn_jupyter.errors import UsageError
from djinn_jupyter.methods.sweep.api.pair_metrics import PerPair, metric_in


def given_pairs(pairs: object) -> tuple[list[object], list[object], PerPair | None]:
    """Return the clean and the corrupted lines of a list of (clean, corrupted), or of the file at a pathlib.Path, whose
    objects have the fields `clean` and `corrupted`; and the metrics where objects have `answers` or a `metric` each.
    Raises UsageError."""
    if isinstance(pairs, Path):
        found = [_pair(where, value) for where, value in records(pairs, "pair")]
    elif isinstance(pairs, str | bytes) or not isinstance(pairs, Iterable):
        raise UsageError("Pairs are a list of (clean, corrupted), or the path of a file of them (pathlib.Path).")
    else:
        found = [_pair(f"pair {number}", value) for number, value in enumerate(pairs)]
    if not found:
        raise UsageError("There are no pairs here.")
    metrics = [metric for _, _, metric in found if metric is not None]
    if metrics and len(metrics) < len(found):
        raise UsageError(f"{len(metrics)} of {len(found)} pairs have a metric or answers; give all of them, or none.")
    own = PerPair(tuple(metrics)) if metrics else None
    return [clean for clean, _, _ in found], [corrupted for _, corrupted, _ in found], own


def _pair(where: str, value: Any) -> tuple[object, object, str | None]:
    if isinstance(value, dict) and {"clean", "corrupted"} <= set(value):
        return value["clean"], value["corrupted"], metric_in(where, value)
    if isinstance(value, list | tuple) and len(value) == 2:
        return value[0], value[1], None
    raise UsageError(f"{where} is neither (clean, corrupted) nor an object with the fields clean and corrupted.")
