"""The module at whose output a pass stopped, and the attention before a stop in its layer: where the pass is entered
there again, their outputs are those of the frame, so that they are not computed twice. Attention runs again where a
pass stopped within it, or at its own output."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import nn

from djinn_jupyter.engine.forward.frame import Frame
from djinn_jupyter.engine.forward.kept_attention import Attended, attention_of, handed_out, noted
from djinn_jupyter.engine.model.discovery.model_map import Anatomy
from djinn_jupyter.engine.model.hooks.taps import Tap


@contextmanager
def passed_over(
    frame: Frame, anatomy: Anatomy, halting: Iterable[int], note: Callable[[int, Attended], None]
) -> Iterator[None]:
    """Have the module of the frame's stop, and the attention before it, return what the frame has of them, once, inside
    this block. `note` is told what attention returns in the layers `halting`. Of a model without states besides keys
    and values."""
    tap, raw, attended = frame.tap, frame.raw, frame.attended
    with ExitStack() as stack:
        if attended is not None:
            attention = attention_of(anatomy, frame.boundary)
            assert attention is not None
            stack.enter_context(_handing_back(attention, lambda: handed_out(attended)))
        if tap is not None and raw is not None and tap.module is not None and _is_all_it_makes(tap, anatomy):
            stack.enter_context(_handing_back(tap.module, raw.clone))
        stack.enter_context(noted(anatomy, halting, note))
        yield


@contextmanager
def _handing_back(module: nn.Module, output: Callable[[], Any]) -> Iterator[None]:
    """Have a module return an output, once, without computing it, inside this block."""
    own = vars(module)
    before: Callable[..., Any] = module.forward
    shadowed = "forward" in own

    def put_back() -> None:
        if shadowed:
            own["forward"] = before
        else:
            own.pop("forward", None)

    def handed_back(*_: Any, **__: Any) -> Any:
        put_back()
        return output()

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
