"""The prompts of many lines in one pass: embedding, masks and positions by the model's own forward, then layer by
layer, then the model's own epilogue for the last token of each.

In the last layer nothing but the last tokens' rows is read. Where all prompts are of one length, their other rows run
there only up to the cache's update, if it has one.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import suppress

import torch
from torch import Tensor

from djinn_jupyter.engine.forward.forward import Forward
from djinn_jupyter.engine.model.hooks.call_forms import Arguments
from djinn_jupyter.engine.model.hooks.gates import Leave
from djinn_jupyter.engine.wavefront.columns import ColumnCache, Columns
from djinn_jupyter.engine.wavefront.filling import filled
from djinn_jupyter.engine.wavefront.sections import Sections


@torch.inference_mode()
def prompt_logits(
    sections: Sections, columns: Columns, prompts: Sequence[Sequence[int]], *, spoilt: int | None = None
) -> Generator[None, None, Tensor]:
    """Return logits [B, V] behind every prompt; `columns`, empty before, have their rows as the newest. Yields after a
    section of a layer. The prompt `spoilt` is made NaN, for a trial."""
    forward = sections.forward
    cache = ColumnCache(forward.model.config, columns)
    arguments = forward.batch_arguments(filled(prompts), cache)
    hidden_BTD = forward.anatomy.forms[0].take(*arguments[0])
    if spoilt is not None:
        hidden_BTD = hidden_BTD.clone()
        hidden_BTD[spoilt] = torch.nan
    for layer, given in enumerate(arguments[:-1]):
        hidden_BTD = yield from sections.run(layer, given, hidden_BTD)
        yield
    own = forward.anatomy.cache_layers_of(forward.layers - 1)  # none where it reads the keys of another layer
    if hidden_BTD.shape[1] > 1 and len(set(map(len, prompts))) == 1 and len(own) == 1:
        with forward.shared(hidden_BTD.shape[0] * hidden_BTD.shape[1]):
            _keep_keys_and_values(forward, cache, arguments[-1], hidden_BTD)
        yield
        return forward.shared_lens(_last_rows(forward, cache, prompts, hidden_BTD))
    hidden_BTD = yield from sections.run(forward.layers - 1, arguments[-1], hidden_BTD)
    yield
    last = torch.tensor([len(tokens) - 1 for tokens in prompts], device=hidden_BTD.device)
    return forward.shared_lens(hidden_BTD[torch.arange(len(prompts), device=hidden_BTD.device), last])


def _keep_keys_and_values(forward: Forward, cache: ColumnCache, given: Arguments, hidden_BTD: Tensor) -> None:
    """Run the last layer up to the update of its cache."""
    args, kwargs = forward.anatomy.forms[-1].put(*given, hidden_BTD)
    with suppress(Leave), cache.leaving():
        forward.anatomy.layers[-1](*args, **kwargs)


def _last_rows(forward: Forward, cache: ColumnCache, prompts: Sequence[Sequence[int]], hidden_BTD: Tensor) -> Tensor:
    """Return the last rows [B, D] behind the last layer, where prompts of one length have their keys and values."""
    before = len(prompts[0]) - 1
    with cache.columns.ending(before):
        given = forward.step_arguments([tokens[-1] for tokens in prompts], [before] * len(prompts), cache, None)[-1]
        form = forward.anatomy.forms[-1]
        args, kwargs = form.put(*given, hidden_BTD[:, -1:])
        with forward.shared(len(prompts)):
            after_B1D: Tensor = form.unwrap(forward.anatomy.layers[-1](*args, **kwargs))
    return after_B1D[:, -1]
