"""The reference: the same tiny model in plain Hugging Face, never touched by an engine."""

from __future__ import annotations

import functools
from typing import Any

import torch

from tests.device import DEVICE
from tests.engine.desk import Outcome
from tests.families import build


@functools.lru_cache(maxsize=24)
def plain_of(family: str, dtype: torch.dtype = torch.float32, attention: str | None = None, layers: int = 8) -> Any:
    """A model of its own, with the same weights."""
    return build(family, dtype=dtype, attention=attention, layers=layers).to(DEVICE)


def generate(model: Any, prompt: tuple[int, ...], new: int, seed: int | None = None, **settings: Any) -> Outcome:
    """Return `generate`'s outcome on DEVICE: greedy without a seed, drawn after `torch.manual_seed(seed)` with one."""
    model.to(DEVICE)
    if seed is not None:
        torch.manual_seed(seed)
    made = model.generate(
        torch.tensor([prompt], device=model.device),
        attention_mask=torch.ones((1, len(prompt)), dtype=torch.long, device=model.device),
        max_new_tokens=new,
        use_cache=True,
        eos_token_id=None,
        pad_token_id=0,
        return_dict_in_generate=True,
        output_logits=True,
        **{"do_sample": seed is not None, **settings},
    )
    return Outcome(tuple(made.sequences[0, len(prompt) :].tolist()), made.logits[-1][0].to(torch.float32).cpu())
