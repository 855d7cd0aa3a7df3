"""Range checks of an engine's options, before any engine is looked up or started. Knows no model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from djinn_jupyter.errors import UsageError
from djinn_jupyter.wire.registry import Options

_Rule = tuple[str, Callable[[Any], bool]]
_SOME: Final[_Rule] = ("is at least 1", lambda count: count >= 1)
_ANY: Final[_Rule] = ("is at least 0", lambda count: count >= 0)  # a NaN is not
_RULES: Final[dict[str, _Rule]] = {
    "device_memory": _SOME,
    "card_memory": _SOME,
    "host_memory": _ANY,
    "disk_memory": _ANY,
    "idle_swap_seconds": _ANY,
    "nap_seconds": _ANY,
    "page_positions": _SOME,
    "stops_kept": _SOME,
    "threads": _SOME,
}


def check_options(options: Options, *, idle_seconds: float | None = None) -> None:
    """Raise UsageError where an option is out of range. Memory limits may exceed the machine's memory: they are upper
    bounds, and an engine takes no more than exists."""
    for name, rule in _RULES.items():
        _require(name, getattr(options, name), rule)
    _require("idle_seconds", idle_seconds, _ANY)


def _require(name: str, asked: Any, rule: _Rule) -> None:
    said, keeps = rule
    if asked is not None and not keeps(asked):
        raise UsageError(f"{name} {said}; it cannot be {asked}.")
