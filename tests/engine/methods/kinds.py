"""The twelve kinds of families that each method is held to, with what hooks by hand have to know of their modules."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from tests.device import DEVICE
from tests.engine.desk import Desk, build_desk
from tests.engine.methods.plain_hooks import Names, PlainHooks
from tests.engine.variants import two_ropes
from tests.families import build

LAYERS = 4
KINDS = {
    "llama": Names(),  # heads that share keys
    "gpt2": Names(attention="attn", mlp="mlp", output="c_proj", down="c_proj"),  # learned positions
    "mistral": Names(),  # windows everywhere
    "gemma3_text": Names(),  # windows beside full attention, two rotaries
    "gemma2": Names(),  # norms behind the blocks too, soft caps
    "olmo2": Names(),  # norms behind the blocks alone
    "bloom": Names(attention="self_attention", mlp="mlp", output="dense", down="dense_4h_to_h"),  # ALiBi
    "gpt_bigcode": Names(attention="attn", mlp="mlp", output="c_proj", down="c_proj"),  # one key for all heads
    "mixtral": Names(down=None),  # experts
    "gpt_neox": Names(attention="attention", output="dense", down="dense_4h_to_h"),  # attention and MLP side by side
    "gemma4_text:shared": Names(down=None),  # layers that read the keys of others
    "long rotary": Names(),  # Phi-3, whose positions from 20 on have other frequencies
}
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
OF_SHARED_KEYS = 8  # layers, of which three read the keys of others


@dataclass(frozen=True, slots=True)
class Subject:
    """One family in one dtype, as an engine and by hand. The two models have the same weights."""

    kind: str
    dtype: torch.dtype
    desk: Desk
    plain: PlainHooks

    @property
    def layers(self) -> int:
        return len(self.plain.layers)


def model_of(kind: str, dtype: torch.dtype, attention: str | None = None) -> Any:
    if kind == "long rotary":
        return two_ropes(layers=LAYERS, dtype=dtype, attention=attention)
    layers = OF_SHARED_KEYS if kind.endswith(":shared") else LAYERS
    return build(kind, dtype=dtype, layers=layers, attention=attention).to(DEVICE)


def subject_of(kind: str, dtype: str) -> Subject:
    given = DTYPES[dtype]
    desk = build_desk(model_of(kind, given))
    return Subject(kind, given, desk, PlainHooks(model_of(kind, given), KINDS[kind]))
