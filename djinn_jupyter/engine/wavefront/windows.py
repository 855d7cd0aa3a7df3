"""Windows of attention where lines run their next positions together: columns keep every row, so the masks have to
leave out what is behind a window.

A family may keep a window by its cache alone, which drops rows, under masks that would leave a line all (Moshi). Short
lines do not tell, for a window has thousands of positions. The masks do, and are made without any row.
"""

from __future__ import annotations

from collections.abc import Sequence

from djinn_jupyter.engine.forward.forward import Forward
from djinn_jupyter.engine.model.hooks.call_forms import Arguments
from djinn_jupyter.engine.model.loading.reasons import first_line
from djinn_jupyter.engine.system.out_of_memory import out_of_memory
from djinn_jupyter.engine.wavefront.columns import ColumnCache, Columns
from djinn_jupyter.engine.wavefront.layer_calls import tensors_by_path
from djinn_jupyter.engine.wavefront.rounding import REFUSALS


class _CountedColumns(Columns):
    """Columns without rows, for masks."""

    def __init__(self, end: int) -> None:
        self.end = end


def why_not_in_columns(forward: Forward) -> str | None:
    """Return why the windows of a model's cache would be lost in columns; None where its masks keep them."""
    windows = {layer.cache_layer: layer.window for layer in forward.geometry.layers if layer.window is not None}
    for window in sorted(set(windows.values())):
        try:
            arguments = _behind(forward, window)
        except REFUSALS as error:
            if out_of_memory(error):
                raise
            return f"the masks of its windows cannot be made ({first_line(error)})"
        for layer, given in enumerate(arguments):
            own = any(windows.get(number) == window for number in forward.anatomy.cache_layers_of(layer))
            if own and not _leaves_out_the_first(given, window + 2):
                return "its cache keeps a window that its masks do not"
    return None


def _behind(forward: Forward, window: int) -> Sequence[Arguments]:
    """Return the layers' arguments for one token, two of the columns before which are behind the window."""
    cache = ColumnCache(forward.model.config, _CountedColumns(window + 1))
    return forward.step_arguments([0], [window + 1], cache, None)


def _leaves_out_the_first(arguments: Arguments, columns: int) -> bool:
    """Return whether a mask of so many columns among the arguments treats the first otherwise than the last."""
    masks = (one for _, one in tensors_by_path(arguments, ()) if one.ndim > 1 and one.shape[-1] == columns)
    return any(not bool((mask[..., 0] == mask[..., -1]).any()) for mask in masks)
