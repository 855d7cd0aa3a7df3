"""Helpers of the anatomy's tests: one plain forward pass, its sites' values, its edits, its cache."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from djinn_jupyter.engine.model.discovery.model_map import Anatomy, discover, site_of
from djinn_jupyter.engine.model.discovery.recording import cache_argument
from djinn_jupyter.engine.model.hooks.taps import Tap, catch
from tests.families import build

TOKENS = (5, 17, 44, 91, 120, 33)  # shorter than every window of the tiny models
Edit = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Subject:
    """A tiny model with its anatomy."""

    model: PreTrainedModel
    anatomy: Anatomy

    def tap(self, site: str) -> Tap:
        return self.anatomy.resolve(site_of(site, self.anatomy))

    def has(self, point: str, layer: int) -> bool:
        return isinstance(self.anatomy.taps[point, layer], Tap)

    def why_not(self, point: str, layer: int) -> str:
        return self.anatomy.taps[point, layer]


@functools.lru_cache(maxsize=4)
def subject(name: str, attention: str | None = None, dtype: torch.dtype = torch.float32) -> Subject:
    model = build(name, attention=attention, dtype=dtype)
    return Subject(model, discover(model))


@dataclass
class Pass:
    """Values by site, raw tensors by site, logits, and the cache afterwards."""

    values: dict[str, Tensor] = field(default_factory=dict)
    raw: dict[str, Tensor] = field(default_factory=dict)
    order: list[str] = field(default_factory=list)
    logits: Tensor | None = None
    cache: Any = None

    def __getitem__(self, site: str) -> Tensor:
        return self.values[site]


@torch.no_grad()
def run(
    subject: Subject,
    *sites: str,
    edits: Mapping[str, Edit] | None = None,
    tokens: tuple[int, ...] = TOKENS,
    cache: Any = None,
) -> Pass:
    """Run one pass in which `sites` are read (after their edit) and `edits` applied."""
    edits = dict(edits or {})
    seen = Pass(cache=DynamicCache(config=subject.model.config) if cache is None else cache)
    taps = {site: subject.tap(site) for site in dict.fromkeys((*edits, *sites))}
    named = {id(tap): site for site, tap in taps.items()}

    def on_value(tap: Tap, raw: Tensor) -> Tensor | None:
        site = named[id(tap)]
        changed = tap.write(raw, edits[site](tap.read(raw))) if site in edits else None
        now = raw if changed is None else changed
        seen.order.append(site)
        seen.raw[site] = now.clone()
        seen.values[site] = tap.read(now).clone()
        return changed

    with boundaries(subject, taps, on_value), catch((t for t in taps.values() if t.kind != "result"), on_value):
        arguments = {cache_argument(subject.model): seen.cache, "use_cache": True}
        seen.logits = subject.model(torch.tensor([tokens]), **arguments).logits
    return seen


def boundaries(subject: Subject, taps: Mapping[str, Tap], on_value: Callable[[Tap, Tensor], Tensor | None]) -> Any:
    """Plain hooks for the taps that belong to the gates."""
    stack = ExitStack()
    layers, forms = subject.anatomy.layers, subject.anatomy.forms
    for tap in taps.values():
        if tap.kind != "boundary":
            continue
        if tap.boundary < len(layers):
            stack.callback(_before(tap, layers[tap.boundary], forms[tap.boundary], on_value).remove)
        else:
            stack.callback(_after(tap, layers[-1], forms[-1], on_value).remove)
    return stack


def _before(tap: Tap, layer: Any, form: Any, on_value: Any) -> Any:
    def hook(module: Any, args: Any, kwargs: Any) -> Any:
        changed = on_value(tap, form.take(args, kwargs))
        return None if changed is None else form.put(args, kwargs, changed)

    return layer.register_forward_pre_hook(hook, with_kwargs=True)


def _after(tap: Tap, layer: Any, form: Any, on_value: Any) -> Any:
    def hook(module: Any, args: Any, output: Any) -> Any:
        changed = on_value(tap, form.unwrap(output))
        return None if changed is None else form.rewrap(output, changed)

    return layer.register_forward_hook(hook)


def zero(value: Tensor) -> Tensor:
    return torch.zeros_like(value)


def zero_head(head: int) -> Edit:
    def edit(value: Tensor) -> Tensor:
        value = value.clone()
        value[:, head] = 0
        return value

    return edit


def noise(seed: int) -> Edit:
    def edit(value: Tensor) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        return torch.randn(value.shape, generator=generator).to(value)

    return edit
