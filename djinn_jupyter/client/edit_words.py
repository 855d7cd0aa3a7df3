"""Parse edits from words: `scale 0.9`, `add VECTOR`, `patch_from paris`, as `client.edits` declares their kinds. The
caller resolves each argument to a number, a vector or a session: a notebook looks in its namespace, an editor accepts
numbers and lists."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from djinn_jupyter.client.edits import EXAMPLES, KINDS, EditWords
from djinn_jupyter.errors import UsageError

if TYPE_CHECKING:
    from djinn_jupyter.client.patches import Patch
    from djinn_jupyter.wire.edits import Edit

NO_OPTIONS: Final[Mapping[str, Any]] = {}


def parse_edit(
    words: Sequence[str],
    *,
    value: Callable[[str], Any],
    find: Callable[[str], Any],
    options: Mapping[str, Any] = NO_OPTIONS,
) -> Edit | Patch:
    """Return the edit that the words spell. `options` are parsed options by their keys; None and those of no edit are
    ignored. Raises UsageError."""
    name, *rest = [unquoted(word) for word in words] or [""]
    kind = KINDS.get(name)
    if kind is None:
        raise UsageError(f"{name!r} is no edit; write one of: {EXAMPLES}.")
    if len(rest) != len(kind.words):
        raise UsageError(f"{name} takes {len(kind.words)} argument{'s'[: len(kind.words) != 1]}: {kind.example}.")
    _refuse_options_of_others(name, options)
    read: dict[str, Callable[[str], Any]] = {
        "number": partial(_number, value),
        "bound": partial(_bound, value),
        "value": value,
        "session": find,
    }
    given = {one.parameter: options[one.key] for one in kind.options if options.get(one.key) is not None}
    return kind.make(*(read[word](text) for word, text in zip(kind.words, rest, strict=True)), **given)


def _refuse_options_of_others(name: str, options: Mapping[str, Any]) -> None:
    for owner, kind in KINDS.items():
        if owner != name and any(options.get(one.key) is not None for one in kind.options):
            raise UsageError(f"{_flags(kind)} to {owner}, not to {name}.")


def _flags(kind: EditWords) -> str:
    flags = [one.flag for one in kind.options]
    return f"{' and '.join(flags)} belong{'s' if len(flags) == 1 else ''}"


def unquoted(text: str) -> str:
    """Return `text` without the pair of quotes around it, if there is one."""
    return text[1:-1] if len(text) >= 2 and text[0] == text[-1] and text[0] in "\"'" else text


def _number(value: Callable[[str], Any], expression: str) -> float:
    found = value(expression)
    try:
        return float(found)
    except (TypeError, ValueError):
        raise UsageError(f"{expression!r} is not one number.") from None


def _bound(value: Callable[[str], Any], expression: str) -> float | None:
    return None if expression.lower() == "none" else _number(value, expression)
