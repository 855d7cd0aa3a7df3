"""The module at whose output a pass stopped: where the pass is entered there again, its output is that of the frame, so
that it is not computed twice. A module that writes the cache runs again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from djinn_jupyter.engine.forward.frame import Frame
from djinn_jupyter.engine.model.discovery.model_map import Anatomy
from djinn_jupyter.engine.model.hooks.taps import Tap


@contextmanager
def passed_over(frame: Frame, anatomy: Anatomy) -> Iterator[None]:
    """Have the module of the frame's stop return the frame's value, once, inside this block. Of a model without states
    besides keys and values."""
    tap, raw = frame.tap, frame.raw
    if tap is None or raw is None or tap.module is None or not _is_all_it_makes(tap, anatomy):
        yield
        return
    own = vars(tap.module)
    before: Callable[..., Any] = tap.module.forward
    shadowed = "forward" in own

    def put_back() -> None:
        if shadowed:
            own["forward"] = before
        else:
            own.pop("forward", None)

    def handed_back(*_: Any, **__: Any) -> Tensor:
        put_back()
        return raw.clone()

    own["forward"] = handed_back
    try:
        yield
    finally:
        put_back()


def _is_all_it_makes(tap: Tap, anatomy: Anatomy) -> bool:
    """True where the tap's value is all that its module makes of a pass: nothing of the cache, and one tensor, which is
    put back as it is."""
    whole = tap.kind == "module_output" and tap.key is None and tap.within is None and tap.editable
    if not whole or tap.in_place or not 0 <= tap.stage < len(anatomy.layers):
        return False
    keys = anatomy.taps.get(("k", tap.stage))
    return isinstance(keys, Tap) and keys.module is not None and not _contains(tap.module, keys.module)


def _contains(module: nn.Module | None, inner: nn.Module) -> bool:
    return module is not None and any(one is inner for one in module.modules())
