"""The prompts of many lines in one pass: embedding, masks and positions by the model's own forward, then layer by
layer, then the model's own epilogue for the last token of each."""

from __future__ import annotations

from collections.abc import Generator, Sequence

import torch
from torch import Tensor

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
    arguments = forward.batch_arguments(filled(prompts), ColumnCache(forward.model.config, columns))
    hidden_BTD = forward.anatomy.forms[0].take(*arguments[0])
    if spoilt is not None:
        hidden_BTD = hidden_BTD.clone()
        hidden_BTD[spoilt] = torch.nan
    for layer, given in enumerate(arguments):
        hidden_BTD = yield from sections.run(layer, given, hidden_BTD)
        yield
    last = torch.tensor([len(tokens) - 1 for tokens in prompts], device=hidden_BTD.device)
    return forward.lens(hidden_BTD[torch.arange(len(prompts), device=hidden_BTD.device), last])
