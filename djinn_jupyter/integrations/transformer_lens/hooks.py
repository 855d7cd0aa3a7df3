"""A hook point of TransformerLens, with the functions that its caller has added: which of them only look, and how they
are called with a value of the engine's."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from torch import Tensor

LOOKING: Final = frozenset({"cache_hook", "save_hook"})
STOPPING: Final = "stop_hook"
THEIR_MODULE: Final = "transformer_lens.model_bridge.bridge_core"


def only_looks(hook_point: Any) -> bool:
    """Return whether all functions here are those by which `run_with_cache` and `get_caching_hooks` keep values: these
    need no stop. Any other function may change what it is given."""
    return all(_own_name(handle.user_hook) in LOOKING for handle in hook_point.fwd_hooks)


def stops(hook_point: Any) -> bool:
    """Return whether `run_with_cache` ends the pass here (`stop_at_layer`)."""
    return any(_own_name(handle.user_hook) == STOPPING for handle in hook_point.fwd_hooks)


def _own_name(function: Any) -> str | None:
    """Return the name of a function of TransformerLens's own; None for one of its users."""
    while isinstance(function, partial):
        function = function.func
    own = getattr(function, "__module__", None) == THEIR_MODULE
    return getattr(function, "__name__", None) if own else None


def fired(hook_point: Any, value: Tensor) -> Tensor:
    """Call the functions of a hook point in their order. Return the value as they leave it."""
    conversion = hook_point.hook_conversion
    if conversion is None:
        left: Tensor = hook_point(value)
        return left
    left = conversion.convert(hook_point(conversion.revert(value)))
    return left
