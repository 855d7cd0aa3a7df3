"""Rotary frequencies that a forward pass changes for all sessions (`rope_type="dynamic"`), restored before each entry.

A lone run only grows, so its frequencies are a function of the present length: starting each entry from the load-time
values gives every session the bits it would have alone. Where they change once at a fixed length
(`rope_type="longrope"`), a line that crosses it would read keys of both kinds. Source: transformers,
`modeling_rope_utils.dynamic_rope_update`, `Phi3ForCausalLM.prepare_inputs_for_generation`."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from typing import Any, Final

from torch import Tensor, nn
from transformers import GenerationMixin, PreTrainedModel

ORIGINAL: Final = "original_max_position_embeddings"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Saved:
    module: nn.Module
    buffers: dict[str, Tensor]
    attributes: dict[str, Any]


def _kinds(module: nn.Module) -> list[object]:
    kinds = getattr(module, "rope_type", None)
    return list(kinds.values()) if isinstance(kinds, dict) else [kinds]


def _is_dynamic(module: nn.Module) -> bool:
    return any(isinstance(kind, str) and "dynamic" in kind for kind in _kinds(module))


class Frequencies:
    """Called with a line's length: what its rotary frequencies are known by. Lines of one pass have the same, for the
    longest decides. All lengths are one to most models."""

    def __init__(self, model: PreTrainedModel) -> None:
        dynamic = [module for module in model.modules() if _is_dynamic(module)]
        self._switches = sorted({length for module in model.modules() for length in _switches(module)})
        self._stretch_beyond = min((_trained_on(module) for module in dynamic), default=None)

    def __call__(self, length: int) -> tuple[int, int]:
        stretched = self._stretch_beyond is not None and length > self._stretch_beyond
        return bisect_left(self._switches, length), length if stretched else 0


def _switches(module: Any) -> list[int]:
    """Return the lengths beyond which a module takes its other frequencies."""
    kinds = getattr(module, "rope_type", None)
    if not isinstance(kinds, dict):
        return [module.config.rope_parameters[ORIGINAL]] if kinds == "longrope" else []
    of_each = module.config.rope_parameters
    return [of_each[layers][ORIGINAL] for layers, kind in kinds.items() if kind == "longrope"]


def _trained_on(module: Any) -> int:
    """Return the length beyond which a dynamic rotary module stretches its frequencies, a little for each position."""
    length: int = module.original_max_seq_len
    return length


def switches_at(model: PreTrainedModel) -> int | None:
    """Return the length beyond which `generate` recomputes a line from its first token with other frequencies."""
    own = getattr(type(model), "prepare_inputs_for_generation", None)
    if own in (None, GenerationMixin.prepare_inputs_for_generation):
        return None
    if not any(getattr(module, "rope_type", None) == "longrope" for module in model.modules()):
        return None
    found = getattr(model.config, ORIGINAL, None)
    return found if isinstance(found, int) else None


class RotaryBuffers:
    """The load-time state of every module with dynamic rotary frequencies; empty for most models."""

    def __init__(self, model: nn.Module) -> None:
        self._saved = tuple(_save(module) for module in model.modules() if _is_dynamic(module))

    def reset(self) -> None:
        for saved in self._saved:
            for name, buffer in saved.buffers.items():
                saved.module.register_buffer(name, buffer.clone(), persistent=False)
            for name, value in saved.attributes.items():
                setattr(saved.module, name, value)


def _save(module: nn.Module) -> _Saved:
    buffers = {name: buffer.clone() for name, buffer in module.named_buffers(recurse=False)}
    changing = [name for name in vars(module) if name.endswith(("max_seq_len_cached", "attention_scaling"))]
    return _Saved(module=module, buffers=buffers, attributes={name: getattr(module, name) for name in changing})
