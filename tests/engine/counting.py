"""Layers that really run, counted beside the engine's own counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


class LayerCount:
    """Counts layers that really run, by hooks on a module inside each: a skipped layer calls nothing of its own."""

    def __init__(self, model: Any, layers: tuple[torch.nn.Module, ...]) -> None:
        self.counted: Counter[int] = Counter()
        for index, layer in enumerate(layers):
            leaf = self._called_once(model, layer)
            leaf.register_forward_hook(lambda *_, index=index: self.counted.update([index]))

    def _called_once(self, model: Any, layer: torch.nn.Module) -> torch.nn.Module:
        calls: Counter[torch.nn.Module] = Counter()
        hooks = [
            module.register_forward_hook(lambda module, *_: calls.update([module]))
            for module in layer.modules()
            if module is not layer
        ]
        with torch.inference_mode():
            model(torch.tensor([[5, 6, 7]], device=next(model.parameters()).device), use_cache=False)
        for hook in hooks:
            hook.remove()
        return next(module for module, times in calls.items() if times == 1)

    @contextmanager
    def expect(self, *runs: int) -> Iterator[None]:
        """Fail unless layer `i` runs `runs[i]` times in this block."""
        self.counted.clear()
        yield
        assert [self.counted[i] for i in range(len(runs))] == list(runs)
