"""A model run on pages, and the same model run on transformers' own cache."""

from __future__ import annotations

import copy
import functools
import inspect
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache

from djinn_jupyter.engine.memory.budget import Budget
from djinn_jupyter.engine.memory.kv.cache import PagedCache
from djinn_jupyter.engine.memory.kv.geometry import CacheGeometry, probe_geometry
from djinn_jupyter.engine.memory.kv.slab import Slab
from tests.families import build

CPU = torch.device("cpu")
PAGE = 16
MEBIBYTE = 1 << 20


@functools.cache  # the tests of a file go through all variants one after the other
def model_of(family: str, dtype: torch.dtype, attention: str | None, layers: int) -> tuple[Any, CacheGeometry]:
    model = build(family, dtype=dtype, attention=attention, layers=layers)
    return model, probe_geometry(model, CPU, PAGE)


def tokens(count: int, seed: int = 1) -> Tensor:
    return torch.randint(3, 120, (1, count), generator=torch.Generator().manual_seed(seed))


@torch.no_grad()
def forward(model: Any, argument: str, cache: Any, ids: Tensor) -> Tensor:
    """Logits of the last position, as `generate` asks for them."""
    options: dict[str, Any] = {argument: cache, "use_cache": True}
    if "logits_to_keep" in inspect.signature(model.forward).parameters:
        options["logits_to_keep"] = 1
    return model(ids, **options).logits[:, -1].clone()


@dataclass(slots=True)
class Plain:
    """The reference: a DynamicCache, never paged."""

    model: Any
    argument: str
    cache: Any

    def step(self, ids: Tensor) -> Tensor:
        return forward(self.model, self.argument, self.cache, ids)

    def fork(self) -> Plain:
        return Plain(self.model, self.argument, copy.deepcopy(self.cache))


@dataclass(slots=True)
class Paged:
    """One session on pages."""

    model: Any
    argument: str
    cache: PagedCache

    def step(self, ids: Tensor) -> Tensor:
        start = self.cache.length
        end = start + ids.shape[1]
        self.cache.reserve(start, end)
        self.cache.enter(start)
        logits = forward(self.model, self.argument, self.cache, ids)
        self.cache.commit(end)
        return logits

    def fork(self) -> Paged:
        return Paged(self.model, self.argument, self.cache.fork())


@dataclass(slots=True)
class Pair:
    """Both of them, with the slabs of the paged one."""

    plain: Plain
    paged: Paged
    slabs: list[Slab]

    @property
    def cache(self) -> PagedCache:
        return self.paged.cache

    def step(self, ids: Tensor) -> None:
        """Run one pass on each; the logits must be the same bits."""
        ours, theirs = self.paged.step(ids), self.plain.step(ids)
        assert torch.isfinite(theirs).all()
        assert torch.equal(ours, theirs), f"at {self.cache.length}: {(ours - theirs).abs().max()}"

    def steps(self, ids: Tensor) -> None:
        """Generate token by token."""
        for position in range(ids.shape[1]):
            self.step(ids[:, position : position + 1])

    def fork(self) -> Pair:
        return Pair(self.plain.fork(), self.paged.fork(), self.slabs)


def pair(
    family: str,
    dtype: torch.dtype = torch.float32,
    attention: str | None = None,
    limit_bytes: int = 64 * MEBIBYTE,
    layers: int = 8,
) -> Pair:
    model, geometry = model_of(family, dtype, attention, layers)
    budget = Budget(limit_bytes)
    slabs = [Slab(group, CPU, budget, segment_pages=4, poison=True) for group in geometry.groups]
    argument = geometry.cache_argument
    return Pair(
        Plain(model, argument, DynamicCache(config=model.config)),
        Paged(model, argument, PagedCache.create(model.config, geometry, slabs)),
        slabs,
    )
