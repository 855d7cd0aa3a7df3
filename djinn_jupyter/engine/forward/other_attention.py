"""The model's other way to compute attention, for the passes of the sessions that chose it.

transformers looks the name of the attention up in the configurations at every pass. So one model serves both: the names
are replaced for the time of a pass, which one computing thread makes safe, and are the former ones between any two. The
points are found anew under it, for maps that a fused function does not expose are tensors there. Knows no session.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from transformers import PreTrainedModel

from djinn_jupyter.engine.model.discovery.model_map import Anatomy, discover
from djinn_jupyter.engine.model.hooks.gates import Gates
from djinn_jupyter.engine.model.loading.other_parts import sections
from djinn_jupyter.errors import ModelRefused, UsageError


class AttentionSwitch:
    """The configurations of a model that name its attention, and the name that each has under `wanted`."""

    def __init__(self, model: PreTrainedModel, wanted: str) -> None:
        self.model, self.wanted = model, wanted
        if not model._can_set_attn_implementation():
            raise self.refused("its layers were built with one")
        configs = _configs(model)
        before = [one._attn_implementation_internal for one in configs]
        try:
            model.set_attn_implementation(wanted)
            after = [one._attn_implementation_internal for one in configs]
        except (ValueError, ImportError) as error:
            raise self.refused(str(error).rstrip(".")) from None
        finally:
            for one, name in zip(configs, before, strict=True):
                one._attn_implementation_internal = name
        self._named = [(*each,) for each in zip(configs, before, after, strict=True) if each[1] != each[2]]

    @contextmanager
    def on(self) -> Iterator[None]:
        """Have the model compute attention the wanted way inside this block."""
        try:
            for config, _, wanted in self._named:
                config._attn_implementation_internal = wanted
            yield
        finally:
            for config, before, _ in self._named:
                config._attn_implementation_internal = before

    def refused(self, why: str) -> UsageError:
        """Return the refusal of a session of this attention."""
        return UsageError(
            f"{type(self.model).__name__} cannot compute {self.wanted} attention for one session: {why}. Load the "
            f"model in an engine of its own, with --attention {self.wanted}."
        )


@torch.inference_mode()
def anatomy_under(switch: AttentionSwitch, gates: Gates, held: Sequence[int], before: Anatomy) -> Anatomy:
    """Return the anatomy under the other attention. Raises UsageError where stops there would not be what they are."""
    with switch.on(), gates.lifted():
        try:
            found = discover(switch.model, held)
        except ModelRefused as error:
            raise switch.refused(str(error).rstrip(".")) from None
    if found.forms != before.forms or found.mappings != before.mappings or found.handed != before.handed:
        raise switch.refused("its layers are called otherwise then")
    if switch.wanted == "eager" and any(getattr(tap, "kind", None) == "recomputed" for tap in found.taps.values()):
        raise switch.refused("its layers call a fused function all the same")
    return found


def _configs(model: PreTrainedModel) -> list[Any]:
    """Return each configuration that a module of the model has, and those within them, once."""
    found: dict[int, Any] = {}
    waiting: list[Any] = [module.config for module in model.modules() if hasattr(module, "config")]
    while waiting:
        config = waiting.pop()
        if id(config) in found or not hasattr(config, "_attn_implementation_internal"):
            continue
        found[id(config)] = config
        waiting += sections(config)
    return list(found.values())
