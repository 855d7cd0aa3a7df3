"""Edits as words: `scale 0.9`, `add vector --coef 4`, `patch_from paris`. And the cell that edits with Python."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

from djinn_jupyter.api import edits
from djinn_jupyter.api.patches import Patch
from djinn_jupyter.api.session import RemoteSession
from djinn_jupyter.errors import UsageError
from djinn_jupyter.magics.kernel_state import KernelState
from djinn_jupyter.wire.edits import Edit


def parse_edit(state: KernelState, words: list[str], options: Namespace) -> Edit | Patch:
    """Return the edit that the words spell. Vectors are names or expressions of the user's own namespace."""
    return edits.parse_edit(words, value=state.value, find=state.find, options=vars(options))


def edited_by_code(
    state: KernelState, session: RemoteSession, code: str, *, site: str | None, positions: str | None, use_torch: bool
) -> Any:
    """Return `h` after the user's code, which runs in the user's own kernel and namespace, like any cell.

    `h` is a copy in the value's dtype, or in float32 where numpy has no such dtype (bfloat16). It must keep its shape,
    stay floating point and finite; the engine rounds it back to the model's dtype.
    """
    before = _writable(session.inspect(site, positions).value)
    h = state.torch.from_numpy(before.copy()) if use_torch else before.copy()
    had = "h" in state.shell.user_ns
    former = state.shell.user_ns.get("h")
    state.shell.push({"h": h})
    try:
        result = state.shell.run_cell(code, store_history=False)
        after = state.shell.user_ns.get("h")
    finally:
        if had:
            state.shell.user_ns["h"] = former
        else:
            state.shell.user_ns.pop("h", None)
    if not result.success:
        raise UsageError("The edit was not applied: its code raised the error above.")
    return _checked(state, after, before)


def _writable(values: Any) -> Any:
    """Return bfloat16 as float32, which represents each of its values exactly; other dtypes unchanged."""
    import numpy as np

    return values.astype(np.float32) if values.dtype.name == "bfloat16" else values


def _checked(state: KernelState, after: Any, before: Any) -> Any:
    """Return the new value as an array like the old one. Raises UsageError with one sentence where it does not fit."""
    import sys

    import numpy as np

    torch = sys.modules.get("torch")
    if torch is not None and isinstance(after, torch.Tensor):
        after = after.detach().cpu().float().numpy()
    try:
        values = np.asarray(after)
    except ValueError:
        raise UsageError("The edit was not applied: h is no array any more.") from None
    if values.dtype.kind != "f":
        raise UsageError(f"The edit was not applied: h must stay floating point, it is {values.dtype} now.")
    if values.shape != before.shape:
        raise UsageError(
            f"The edit was not applied: h must keep the shape {list(before.shape)}, it is {list(values.shape)} now."
        )
    values = values.astype(before.dtype)
    bad = int(np.count_nonzero(~np.isfinite(values)))
    if bad:
        raise UsageError(f"The edit was not applied: {bad:,} of {values.size:,} entries of h are not finite.")
    return values
