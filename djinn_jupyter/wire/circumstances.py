"""The circumstances of a measurement: what its numbers follow from, besides its request and its lines, and the passes
that a line was fed in."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from djinn_jupyter.wire.adapters import AdapterIdentity
from djinn_jupyter.wire.frozen import Frozen
from djinn_jupyter.wire.interventions import Steer
from djinn_jupyter.wire.module_form import ModuleIdentity
from djinn_jupyter.wire.nouns import AttentionName
from djinn_jupyter.wire.provenance import Provenance


class FedTokens(Frozen, frozen=True):
    """Positions [start, end) of a line, which were fed `each` at a time under these steering `rules`."""

    start: Annotated[int, Meta(ge=0)]
    end: int
    each: Annotated[int, Meta(ge=1)]
    rules: tuple[Steer, ...] = ()


class Circumstances(Frozen, frozen=True):
    """The steering `rules` that held, as they are asked for, the `attention`, None for the engine's own, the
    `adapter`, the added `modules` that the sites of rules and request are of, and the model and machine that computed
    it."""

    rules: tuple[Steer, ...]
    attention: AttentionName | None
    by: Provenance
    adapter: AdapterIdentity | None = None
    modules: tuple[ModuleIdentity, ...] = ()
