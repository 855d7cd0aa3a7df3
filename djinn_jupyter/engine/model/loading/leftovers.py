"""Weights of a checkpoint that the model has no place for: which may be left out, and which are a reason to refuse.

The rule: a weight is in a checkpoint because something uses it. It may be left out where it belongs to another part,
for images or sound, that the served model lacks, or where the family's own class declares that it is not needed. The
language part would have used all others (scales of quantized weights, layers beyond the last, an adapter's matrices,
another head); computed without them, it is another model.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from typing import Any

from torch import nn
from transformers import PreTrainedModel

from djinn_jupyter.engine.model.loading.other_parts import around_text, other_parts, other_sections

_SHOWN = 6


class Leftovers:
    """The names in a checkpoint that a model has no place for. `configuration` is that of the checkpoint."""

    def __init__(self, model: PreTrainedModel, configuration: Any) -> None:
        self._modules = dict(model.named_modules())
        self._towers = tuple(other_parts(model))
        self._around = around_text(model)
        text_alone = type(model.config) is not type(configuration)  # then parts beside the text begin at its path
        self._containers = self._around[0 if text_alone else 1 :] if other_sections(configuration) else []
        self._declared = [re.compile(pattern) for pattern in model._keys_to_ignore_on_load_unexpected or ()]

    def used(self, unexpected: Iterable[str]) -> list[str]:
        """Return the unexpected names that the language part would have used."""
        return sorted(name for name in unexpected if not self._of_another_part(name))

    def left_out(self, unexpected: Iterable[str], names: Iterable[str]) -> str | None:
        """Return a sentence on the parts that are not served. `names` are all that the checkpoint holds."""
        parts = Counter(self._part(name) for name in {*unexpected, *self._ignored(names)})
        parts.update({tower: _weights_in(self._modules[tower]) for tower in self._towers})
        if not parts:
            return None
        shown = [f"{part} ({count} {'weight' if count == 1 else 'weights'})" for part, count in sorted(parts.items())]
        more = f" and {len(shown) - _SHOWN} more" if len(shown) > _SHOWN else ""
        return f"The language model alone is served; left out: {', '.join(shown[:_SHOWN])}{more}."

    def _of_another_part(self, name: str) -> bool:
        return self._in_tower(name) or self._deepest(name) in self._containers

    def _in_tower(self, name: str) -> bool:
        return any(name.startswith(f"{tower}.") for tower in self._towers)

    def _ignored(self, names: Iterable[str]) -> Iterable[str]:
        """Yield the names in whole parts and layers that the family's class declares unneeded."""
        for name in names:
            deepest = self._deepest(name)
            whole = deepest in self._around or isinstance(self._modules[deepest], nn.ModuleList)
            if whole and any(pattern.search(name) for pattern in self._declared):
                yield name

    def _deepest(self, name: str) -> str:
        """Return the path of the model's innermost module on the way to a tensor of that name."""
        path = name.rpartition(".")[0]
        while path and path not in self._modules:
            path = path.rpartition(".")[0]
        return path

    def _part(self, name: str) -> str:
        """Return the first path prefix of the name that is not in the model."""
        deepest = self._deepest(name)
        begin = len(deepest) + 1 if deepest else 0
        return name[:begin] + name[begin:].partition(".")[0]


def _weights_in(module: nn.Module) -> int:
    return sum(1 for _ in module.parameters())
