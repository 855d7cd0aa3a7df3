"""Parse edits from words: `scale 0.9`, `add VECTOR`, `patch_from paris`. The caller resolves each argument to a number,
a vector or a session: a notebook looks in its namespace, an editor accepts numbers and lists."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from djinn_jupyter.errors import UsageError

OPERATIONS: Final = {
    "scale": "scale 0.9",
    "add": "add VECTOR --coef 4",
    "set": "set VALUE",
    "zero": "zero",
    "clamp": "clamp LOW HIGH (`none` leaves a side open)",
    "project_out": "project_out DIRECTION",
    "patch_from": "patch_from SESSION",
}
_WORDS: Final = {"scale": 1, "add": 1, "set": 1, "zero": 0, "clamp": 2, "project_out": 1, "patch_from": 1}


def parse_edit(
    words: Sequence[str],
    *,
    value: Callable[[str], Any],
    find: Callable[[str], Any],
    made: Any = None,
    coef: float | None = None,
    source: str | None = None,
    at: str | None = None,
) -> Any:
    """Return the edit that the words spell. `made` holds the constructors, by default the module `client.edits`."""
    name, *rest = [unquoted(word) for word in words] or [""]
    if name not in OPERATIONS:
        raise UsageError(f"{name!r} is no edit; write one of: {'; '.join(OPERATIONS.values())}.")
    if len(rest) != _WORDS[name]:
        raise UsageError(f"{name} takes {_WORDS[name]} argument{'' if _WORDS[name] == 1 else 's'}: {OPERATIONS[name]}.")
    if coef is not None and name != "add":
        raise UsageError(f"--coef belongs to add, not to {name}.")
    if (source, at) != (None, None) and name != "patch_from":
        raise UsageError(f"--from-site and --from-positions belong to patch_from, not to {name}.")
    if made is None:
        from djinn_jupyter.client import edits as made
    match name:
        case "zero":
            return made.zero()
        case "scale":
            return made.scale(_number(value, rest[0]))
        case "clamp":
            return made.clamp(*(None if bound.lower() == "none" else _number(value, bound) for bound in rest))
        case "add":
            return made.add(value(rest[0]), coef=1.0 if coef is None else coef)
        case "set":
            return made.set_to(value(rest[0]))
        case "project_out":
            return made.project_out(value(rest[0]))
        case _:
            return made.patch_from(find(rest[0]), site=source, positions=at)


def unquoted(text: str) -> str:
    """Return `text` without the pair of quotes around it, if there is one."""
    return text[1:-1] if len(text) >= 2 and text[0] == text[-1] and text[0] in "\"'" else text


def _number(value: Callable[[str], Any], expression: str) -> float:
    found = value(expression)
    try:
        return float(found)
    except (TypeError, ValueError):
        raise UsageError(f"{expression!r} is not one number.") from None
