"""Result files as rows of text: what is in them, and what is not, with the reason."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

LONGEST_LIST = 12


def rows(fields: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, str]]:
    """Every scalar of a file by its dotted path; long lists by their length."""
    for key, value in fields.items():
        name = f"{path}{key}"
        if key == "reasons":
            continue
        if isinstance(value, Mapping):
            yield from rows(value, f"{name}.")
        elif isinstance(value, Sequence) and not isinstance(value, str):
            yield name, _list(value)
        else:
            yield name, spelled(value)


def unmeasured(written: Mapping[str, Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    """What could not be measured, by file and field, and why."""
    for name, fields in written.items():
        for field, reason in fields.get("reasons", {}).items():
            yield f"{name}: {field}", reason


def spelled(value: Any) -> str:
    if value is None:
        return "not measured"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _list(values: Sequence[Any]) -> str:
    if len(values) > LONGEST_LIST or any(isinstance(value, (Mapping, list)) for value in values):
        return f"{len(values)} entries"
    return ", ".join(spelled(value) for value in values)
