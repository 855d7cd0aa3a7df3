"""An engine to speak to in short sentences: one method a request, names of sessions as they come."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec
import torch
from torch import Tensor

from djinn_jupyter.engine.loop.mailbox import Holder
from djinn_jupyter.engine.memory.budget import Budget
from djinn_jupyter.engine.memory.kv.slab import Slab
from djinn_jupyter.engine.model.loading.load import LoadedModel, choose_devices
from djinn_jupyter.engine.model.loading.tokenizer import TokenText
from djinn_jupyter.engine.process.assemble import Foundation
from djinn_jupyter.engine.process.build import build_engine
from djinn_jupyter.engine.process.engine import Engine
from djinn_jupyter.engine.session import reports
from djinn_jupyter.engine.session.session import Session
from djinn_jupyter.engine.store.persistence import Persistence
from djinn_jupyter.engine.system.arrays import to_array, to_tensor
from djinn_jupyter.engine.system.config import EngineConfig
from djinn_jupyter.wire import replies as told
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.arrays import Array
from djinn_jupyter.wire.edits import Edit, Scale
from djinn_jupyter.wire.nouns import ModelDescription, SessionDescription
from tests.device import DEVICE
from tests.engine.proofs import proven_once
from tests.families import build

ME = Holder(name="tester", user="tester")
PAGE = 16


def array(value: Tensor | float) -> Array:
    return to_array(torch.as_tensor(value))


def tokens(count: int, seed: int = 1, vocabulary: int = 128) -> tuple[int, ...]:
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randint(3, vocabulary - 8, (count,), generator=generator).tolist())


@dataclass(slots=True)
class Desk:
    """`events` are all that were published so far; `hears` is given each of them."""

    engine: Engine
    events: list[told.Event] = field(default_factory=list)
    hears: Callable[[told.Event], None] = lambda event: None

    @property
    def layers(self) -> int:
        return self.engine.forward.layers

    def ask(self, request: ask.Request) -> Any:
        return self.engine.ask(request, ME)

    def post(self, request: ask.Request, replies: list[Any]) -> None:
        """Submit without ticking."""
        self.engine.submit(request, ME, replies.append)

    def session(self, name: str = "a") -> Session:
        return self.engine.sessions[name]

    def describe(self, name: str = "a") -> SessionDescription:
        return reports.describe(self.session(name))

    # --- sessions ----------------------------------------------------------------------------------------------------

    def open(self, name: str = "a") -> str:
        self.ask(ask.Open(session=name, fresh=name in self.engine.sessions, force=True))
        return name

    def close(self, *names: str) -> None:
        for name in names:
            self.ask(ask.Close(session=name, force=True))

    def close_all(self) -> None:
        """Close every session and see that nothing is left behind: no page, no job, no gate under way."""
        self.close(*self.engine.sessions)
        self.settle()
        assert all(slab.pages_in_use == 0 for slab in self.engine.slabs)
        assert len(self.engine.scheduler) == 0
        assert self.engine.forward.gates.hooks is None

    def swap_out(self, name: str = "a", tier: Any = "host") -> told.Swapped:
        return self.ask(ask.SwapOut(session=name, tier=tier))

    def swap_in(self, name: str = "a") -> told.Swapped:
        return self.ask(ask.SwapIn(session=name))

    def settle(self) -> None:
        """Tick until idle, no run waits for others and nothing moves; then the whole account must hold."""
        sharing = self.engine.runtime.sharing
        while self.engine.tick() or self.engine.tiers.moving or sharing.due_in < math.inf:
            if self.engine.tiers.moving or sharing.due_in < math.inf:
                self.engine.mailbox.wait(min(1.0, sharing.due_in))
        self.engine.check_invariants(contents=True)

    def fork(self, name: str, parent: str = "a") -> str:
        self.ask(ask.Fork(session=parent, name=name))
        return name

    # --- moving ------------------------------------------------------------------------------------------------------

    def run(self, prompt: tuple[int, ...], new: int = 4, name: str = "a", **options: Any) -> Any:
        options.setdefault("ignore_eos", True)
        return self.ask(ask.Run(session=name, tokens=prompt, max_new_tokens=new, **options))

    def resume(self, name: str = "a", free: bool = False) -> Any:
        return self.ask(ask.Resume(session=name, free=free))

    def step(self, count: int = 1, by: Any = "layer", name: str = "a") -> Any:
        return self.ask(ask.Step(session=name, count=count, by=by))

    def back(self, count: int = 1, by: Any = "stop", name: str = "a") -> told.Paused:
        return self.ask(ask.Back(session=name, count=count, by=by))

    def stop_at(self, site: str | int, when: str | None = None, name: str = "a", **options: Any) -> int:
        """Set a breakpoint; its number."""
        made = self.ask(ask.SetBreakpoint(session=name, site=str(site), when=when, **options))
        return int(made.breakpoint.number)

    def clear(self, name: str = "a") -> None:
        self.ask(ask.ClearBreakpoints(session=name))

    # --- changing and looking ----------------------------------------------------------------------------------------

    def edit(self, edit: Edit | None = None, name: str = "a", **where: Any) -> told.Edited:
        return self.ask(ask.ApplyEdit(session=name, edit=edit or Scale(factor=0.5), **where))

    def steer(self, site: str, edit: Edit | None = None, name: str = "a", **where: Any) -> told.Steered:
        return self.ask(ask.Steer(session=name, site=site, edit=edit or Scale(factor=0.5), **where))

    def value(self, site: str | None = None, name: str = "a", ahead: bool = False) -> Tensor:
        return to_tensor(self.ask(ask.Inspect(session=name, site=site, ahead=ahead)).snapshot.value)

    def logits(self, name: str = "a") -> Tensor:
        return to_tensor(self.ask(ask.ReadLogits(session=name)).logits)

    def logits_ahead(self, name: str = "a") -> told.Effect:
        """Measure the effect: the logits in which the stopped pass would end."""
        return self.ask(ask.MeasureEffect(session=name))

    def outcome(self, finished: told.Finished, name: str = "a") -> Outcome:
        assert isinstance(finished, told.Finished), finished
        return Outcome(finished.tokens, self.logits(name))


def unnumbered(reply: Any) -> Any:
    """A reply that can be compared with that of another stop."""
    return msgspec.structs.replace(reply, stop=None) if hasattr(reply, "stop") else reply


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """New tokens and the fp32 logits of the last pass. Equal means: the same bits."""

    tokens: tuple[int, ...]
    logits: Tensor

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Outcome) and self.tokens == other.tokens and torch.equal(self.logits, other.logits)

    __hash__ = None  # type: ignore[assignment]


def build_desk(model: Any, tokenizer: Any = None, **config: Any) -> Desk:
    """Return an engine around a model in memory, whose self-test is made once in a process. Raises the errors of
    loading."""
    desk = Desk.__new__(Desk)
    desk.events = []
    desk.hears = desk.events.append
    settings = EngineConfig(**{"model": "tiny", "page_positions": PAGE, **config})
    loaded = LoadedModel(
        model=model.to(DEVICE),
        tokenizer=tokenizer,
        name="tiny",
        revision=None,
        dtype=model.dtype,
        device=DEVICE if settings.devices is None else choose_devices(settings)[0],
    )
    with proven_once():
        desk.engine = build_engine(settings, loaded, lambda event: desk.hears(event), lambda text: None)
    return desk


def engine_like(desk: Desk, *, description: ModelDescription, tokenizer: TokenText | None = None) -> Engine:
    """Another engine around the same model, of another description or with another tokenizer."""
    config, forward, budget = desk.engine.config, desk.engine.forward, Budget(desk.engine.budget.limit)
    given = Foundation(
        config=config,
        forward=forward,
        tokenizer=tokenizer or desk.engine.tokenizer,
        description=description,
        budget=budget,
        slabs=tuple(Slab(group, forward.device, budget) for group in forward.geometry.groups),
        persistence=Persistence(config, desk.engine.persistence.identity, forward.device),
        publish=lambda event: desk.hears(event),
    )
    return Engine(given)


@functools.lru_cache(maxsize=24)
def desk_of(family: str, dtype: torch.dtype = torch.float32, attention: str | None = None, layers: int = 8) -> Desk:
    """The engine of a tiny family, shared by the tests of one worker."""
    return build_desk(build(family, dtype=dtype, attention=attention, layers=layers))


Verb = Callable[[Desk], Any]
