"""Any sequence of moves leaves the accounting balanced and every unedited line equal to `generate`.

A session that was never edited on its present line must end as `generate` does; an edited one as its twin does: the
same edits made again on a fresh session, stop by stop.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from djinn_jupyter.errors import UsageError
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.edits import Add
from djinn_jupyter.wire.replies import Finished, Paused
from tests.engine.desk import Desk, Outcome, array, desk_of, tokens
from tests.engine.plain import generate, plain_of

V = torch.randn(32, generator=torch.Generator().manual_seed(1))
PROMPTS = [tokens(n, seed=n) for n in (3, 9, 15, 17)]


def spelled(boundary: int) -> str:
    return f"resid_post.{boundary - 1}" if boundary else "resid_pre.0"


@dataclass(frozen=True, slots=True)
class Twin:
    """The recipe of a session's line: prompts with the numbers of new tokens, and the edits as (step in its run,
    boundary, coefficient) by run. Frozen: going back takes an earlier one."""

    runs: tuple[tuple[tuple[int, ...], int], ...] = ()
    edits: tuple[tuple[int, int, int, float], ...] = ()  # run, step, boundary, coefficient

    def edited(self, step: int, boundary: int, coefficient: float) -> Twin:
        return replace(self, edits=(*self.edits, (len(self.runs) - 1, step, boundary, coefficient)))

    def without_later(self, step: int, boundary: int) -> Twin:
        """Return the twin as it was on arriving at a place of its last run."""
        run = len(self.runs) - 1
        return replace(self, edits=tuple(e for e in self.edits if (e[0], e[1], e[2]) < (run, step, boundary)))


@dataclass(slots=True)
class Side:
    """One session: its twin, and where it stands. `pending` is the edit made at the present stop."""

    name: str
    twin: Twin = field(default_factory=Twin)
    stop: Paused | None = None
    pending: float | None = None
    finished: bool = False


PICK = st.integers(0, 3)
Kind = Callable[["HistoryMachine"], list[Side]]


def alive(machine: HistoryMachine) -> list[Side]:
    return list(machine.sides.values())


def stopped(machine: HistoryMachine) -> list[Side]:
    return [side for side in alive(machine) if side.stop is not None]


def unedited(machine: HistoryMachine) -> list[Side]:
    return [side for side in stopped(machine) if side.pending is None]


def finished(machine: HistoryMachine) -> list[Side]:
    return [side for side in alive(machine) if side.finished]


def when(kind: Kind, count: int = 1) -> Callable[[Any], Any]:
    """Return a precondition: the rule needs so many sessions of that kind."""
    return precondition(lambda machine: len(kind(machine)) >= count)


class HistoryMachine(RuleBasedStateMachine):
    """Sessions are opened, run, stopped, edited, taken back, forked and closed in any order."""

    family = "llama"

    def __init__(self) -> None:
        super().__init__()
        self.desk = self.first_desk()
        self.plain = plain_of(self.family, layers=4)
        self.opened = 0
        self.sides: dict[str, Side] = {}

    def first_desk(self) -> Desk:
        return desk_of(self.family, layers=4)

    def teardown(self) -> None:
        self.desk.close_all()

    def pick(self, kind: Kind, pick: int) -> Side:
        found = kind(self)
        return found[pick % len(found)]

    # --- sessions ----------------------------------------------------------------------------------------------------

    @initialize()
    def begin(self) -> None:
        self.open()

    @rule()
    @precondition(lambda self: len(self.sides) < 3)
    def open(self) -> None:
        self.opened += 1
        side = Side(self.desk.open(f"s{self.opened}"))
        self.sides[side.name] = side
        self.desk.stop_at("resid_post.1", "step % 2 == 0", side.name)

    @rule(pick=PICK)
    @when(alive)
    @precondition(lambda self: len(self.sides) < 4)
    def fork(self, pick: int) -> None:
        self.opened += 1
        parent = self.pick(alive, pick)
        self.desk.fork(f"s{self.opened}", parent.name)
        self.sides[f"s{self.opened}"] = replace(parent, name=f"s{self.opened}")

    @rule(pick=PICK)
    @when(alive, 3)
    def close(self, pick: int) -> None:
        name = self.pick(alive, pick).name
        self.desk.close(name)
        del self.sides[name]

    # --- runs --------------------------------------------------------------------------------------------------------

    @rule(pick=PICK, prompt=st.sampled_from(PROMPTS), new=st.integers(0, 6))
    @when(alive)
    def run(self, pick: int, prompt: tuple[int, ...], new: int) -> None:
        side = self.pick(alive, pick)
        side.twin = Twin(runs=((prompt, new),))
        self._arrived(side, self.desk.run(prompt, new, name=side.name))

    @rule(pick=PICK, prompt=st.sampled_from([(7,), (9, 11, 13)]), new=st.integers(1, 3))
    @when(finished)
    def extend(self, pick: int, prompt: tuple[int, ...], new: int) -> None:
        side = self.pick(finished, pick)
        side.twin = replace(side.twin, runs=(*side.twin.runs, (prompt, new)))
        self._arrived(side, self.desk.run(prompt, new, name=side.name, extend=True))

    @rule(pick=PICK, free=st.booleans())
    @when(stopped)
    def resume(self, pick: int, free: bool) -> None:
        side = self.pick(stopped, pick)
        self._leave(side)
        self._arrived(side, self.desk.resume(side.name, free=free))

    @rule(pick=PICK, count=st.integers(1, 6), by=st.sampled_from(["layer", "token"]))
    @when(stopped)
    def step(self, pick: int, count: int, by: str) -> None:
        side = self.pick(stopped, pick)
        self._leave(side)
        self._arrived(side, self.desk.step(count, by=by, name=side.name))

    def _leave(self, side: Side) -> None:
        if side.pending is not None:
            side.twin = side.twin.edited(side.stop.step, side.stop.layer, side.pending)
        side.pending = None

    def _arrived(self, side: Side, reply: Any) -> None:
        side.pending, side.finished = None, isinstance(reply, Finished)
        side.stop = reply if isinstance(reply, Paused) else None
        if isinstance(reply, Finished):
            assert self.desk.outcome(reply, side.name) == self._again(side.twin), side.twin

    # --- stops and edits ---------------------------------------------------------------------------------------------

    @rule(pick=PICK, boundary=st.integers(0, 4), condition=st.sampled_from([None, "step == 0", "step > 1"]))
    @when(alive)
    def set_breakpoint(self, pick: int, boundary: int, condition: str | None) -> None:
        self.desk.stop_at(spelled(boundary), condition, self.pick(alive, pick).name)

    @rule(pick=PICK)
    @when(alive)
    def clear_breakpoints(self, pick: int) -> None:
        self.desk.clear(self.pick(alive, pick).name)

    @rule(pick=PICK, coefficient=st.sampled_from([3.0, -4.0]))
    @when(unedited)
    def edit(self, pick: int, coefficient: float) -> None:
        side = self.pick(unedited, pick)
        if (
            self.desk.engine.runtime.token_by_token
            and len(side.twin.runs) > 1
            and side.stop is not None
            and not side.stop.step
        ):
            return  # a prompt that goes on is fed singly: twins do not tell its passes apart
        self.desk.edit(Add(vector=array(V), coef=coefficient), side.name)
        side.pending = coefficient

    @rule(pick=PICK)
    @when(stopped)
    def revert(self, pick: int) -> None:
        side = self.pick(stopped, pick)
        self.desk.ask(ask.RevertEdits(session=side.name))
        side.pending = None

    @rule(pick=PICK)
    @when(stopped)
    def look(self, pick: int) -> None:
        name = self.pick(stopped, pick).name
        self.desk.value("resid_post.1", name, ahead=True)
        self.desk.ask(ask.MeasureEffect(session=name))

    @rule(pick=PICK, by=st.sampled_from(["stop", "layer", "token"]), count=st.integers(1, 3))
    @when(alive)
    def back(self, pick: int, by: str, count: int) -> None:
        """Go back, at most to the first stop."""
        side = self.pick(alive, pick)
        count = min(count, self._room(side, by))
        if count == 0:
            return
        try:
            side.stop = self.desk.back(count, by=by, name=side.name)
        except UsageError as refused:  # a window behind which pages were given up; nothing has changed then
            assert by == "token" and "no longer kept" in str(refused)  # noqa: PT017, PT018  the one refusal there is
            return
        while self._begins(side.twin) > len(side.stop.tokens) - side.stop.step:
            side.twin = replace(side.twin, runs=side.twin.runs[:-1])
        side.twin = side.twin.without_later(side.stop.step, side.stop.layer)
        side.pending, side.finished = None, False

    def _room(self, side: Side, by: str) -> int:
        """Return how far a session can be taken back."""
        session = self.desk.session(side.name)
        if by == "stop":
            present = session.history.present
            return len(session.history.stops) if present is None else present
        if side.stop is not None:
            return side.stop.layer if by == "layer" else side.stop.step
        if by == "layer" or not side.finished or session.generation is None:
            return 0
        return len(session.generation.new_tokens(session.tokens))

    def _begins(self, twin: Twin) -> int:
        """Return the length of the line when its last run began to draw tokens."""
        return sum(len(prompt) for prompt, _ in twin.runs) + sum(new for _, new in twin.runs[:-1])

    # --- what must hold ----------------------------------------------------------------------------------------------

    def _again(self, twin: Twin) -> Outcome:
        """Generate the same line on a fresh session, or by the plain model where nothing was edited and one run made
        it."""
        if len(twin.runs) == 1 and not twin.edits and twin.runs[0][1]:
            return generate(self.plain, *twin.runs[0])
        name = self.desk.open("twin")
        for number, (prompt, new) in enumerate(twin.runs):
            edits = [e[1:] for e in twin.edits if e[0] == number]
            self.desk.clear(name)
            for step, boundary, _ in edits:
                self.desk.stop_at(spelled(boundary), f"step == {step}", name)
            reply = self.desk.run(prompt, new, name=name, extend=number > 0)
            for _, _, coefficient in edits:
                assert isinstance(reply, Paused)
                self.desk.edit(Add(vector=array(V), coef=coefficient), name)
                reply = self.desk.resume(name)
        outcome = self.desk.outcome(reply, name)
        self.desk.close(name)
        return outcome

    @invariant()
    def the_books_balance(self) -> None:
        engine = self.desk.engine
        engine.check_invariants(contents=True)
        assert len(engine.scheduler) == 0
        for name, side in self.sides.items():
            session = engine.sessions[name]
            assert (session.state == "paused") == (side.stop is not None)
            assert session.cache.length <= len(session.tokens)

    @invariant()
    def a_stop_stands_where_it_was_told(self) -> None:
        for name, side in self.sides.items():
            if side.stop is not None:
                again = self.desk.ask(ask.ReadStop(session=name))
                assert (again.site, again.step, again.layer) == (side.stop.site, side.stop.step, side.stop.layer)
                assert again.tokens == side.stop.tokens


class RecurrentHistoryMachine(HistoryMachine):
    family = "mamba2"


class WindowHistoryMachine(HistoryMachine):
    family = "gemma3_text"


SETTINGS = settings(
    max_examples=8,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow],
)
for machine in (HistoryMachine, RecurrentHistoryMachine, WindowHistoryMachine):
    machine.TestCase.settings = SETTINGS
TestHistory = HistoryMachine.TestCase
TestRecurrentHistory = RecurrentHistoryMachine.TestCase
TestWindowHistory = WindowHistoryMachine.TestCase
