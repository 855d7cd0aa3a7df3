"""One position of many lines in one pass: embedding, masks and positions by the model's own forward, then layer by
layer, then the model's own epilogue."""

from __future__ import annotations

from collections.abc import Generator, Sequence

import torch
from torch import Tensor

from djinn_jupyter.engine.forward.forward import Forward
from djinn_jupyter.engine.wavefront.columns import ColumnCache, Columns


@torch.inference_mode()
def next_logits(forward: Forward, columns: Columns, tokens: Sequence[int]) -> Generator[None, None, Tensor]:
    """Return logits [B, V] after one more token of every line; its rows are then the newest. Yields after a layer."""
    cache = ColumnCache(forward.model.config, columns)
    arguments = forward.step_arguments(tokens, columns.lengths, cache, columns.mask())
    anatomy, hidden_B1D = forward.anatomy, None
    for layer, (args, kwargs) in enumerate(arguments):
        form = anatomy.forms[layer]
        if hidden_B1D is not None:
            args, kwargs = form.put(args, kwargs, hidden_B1D)
        with forward.shared(len(tokens)):
            hidden_B1D = form.unwrap(anatomy.layers[layer](*args, **kwargs))
        yield
    assert hidden_B1D is not None
    return forward.shared_lens(hidden_B1D[:, -1])
