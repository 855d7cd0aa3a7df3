"""The two token sequences of a sweep, run alone, and one sequence with one changed place, run alone.

These are passes of the sweep's own session, through the common entry of all passes: bit for bit those of a run that
stops there, is edited and continues.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec
from torch import Tensor

from djinn_jupyter.engine.memory.kv.cache import whole_rows
from djinn_jupyter.engine.model.hooks.taps import Tap
from djinn_jupyter.engine.passes.conditions import Metrics
from djinn_jupyter.engine.passes.controller import Completed, Halted, PassRule, Plan, Target, Unmarked, make_plan
from djinn_jupyter.engine.passes.frame import Frame, Override
from djinn_jupyter.engine.passes.shared_cache import BaseRows, KeyValues
from djinn_jupyter.engine.passes.site_value import SiteValue
from djinn_jupyter.engine.requests import bounds, inspection
from djinn_jupyter.engine.requests.handlers import MethodParts
from djinn_jupyter.engine.session import queries, reports
from djinn_jupyter.engine.session.residence import Blocked
from djinn_jupyter.engine.session.runtime import Runtime
from djinn_jupyter.engine.session.session import Session
from djinn_jupyter.errors import UsageError
from djinn_jupyter.methods.circuits.request import CircuitsRun, EdgesAttributed
from djinn_jupyter.methods.graphs.request import GraphMade
from djinn_jupyter.methods.sweep.request import LineSource
from djinn_jupyter.wire.sites import Site
from djinn_jupyter.wire.texts import in_quotes, label


@dataclass(slots=True, kw_only=True)
class Recorded(Unmarked):
    """Keeps the raw value at a tap as the pass goes by."""

    tap: Tap
    raw: Tensor | None = None

    def observe(self, site_value: SiteValue) -> None:
        self.raw = site_value.raw.detach().clone()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RunLine:
    """A sequence after its run: `raw` values by tap, the hidden states `residuals` before each layer and after the last
    (empty unless requested), its keys and values `rows` where it is the base of others, and the logits of its last
    position, NaN unless wanted. `overrides` are in place wherever it runs."""

    tokens: tuple[int, ...]
    raw: dict[Site, Tensor]
    residuals: tuple[Tensor, ...]
    logits_V: Tensor
    overrides: tuple[Override, ...] = ()
    rows: BaseRows = field(default_factory=lambda: BaseRows({}))

    @property
    def nbytes(self) -> int:
        return self.rows.nbytes + sum(kept.nbytes for kept in (*self.raw.values(), *self.residuals, self.logits_V))


class LinesAlone:
    """Runs sequences in the pages of the sweep's session, one pass at a time."""

    def __init__(self, runtime: Runtime, session: Session) -> None:
        self.runtime, self.session = runtime, session
        self._logits_of: tuple[int, ...] | None = None
        anatomy = runtime.forward.anatomy
        # What one layer passes to a later one besides the hidden state is computed below, so such a pass begins at its
        # start.
        self.from_the_start = runtime.recurrent or bool(anatomy.mappings or anatomy.handed)

    def read(self, tokens: tuple[int, ...] | None) -> None:
        """Compute only the logits of these tokens from here on, None for all; others may be NaN."""
        self._logits_of = tokens

    def run(
        self,
        tokens: tuple[int, ...],
        taps: Iterable[Tap],
        *,
        residuals: bool,
        overrides: tuple[Override, ...] = (),
        rows: bool = False,
    ) -> Generator[Blocked | None, None, RunLine]:
        """Run a sequence with `overrides` in place. Keep the values at `taps`, and on request those between all layers,
        and its keys and values, the `rows` of a base."""
        seen = [Recorded(tap=tap) for tap in taps]
        borders = [Recorded(tap=tap) for tap in self.borders()] if residuals else []
        frame = Frame(tokens=tokens, committed=0, step=0, overrides=overrides)
        with queries.isolated(self.session):
            plan = self.plan(observers=[*seen, *borders])
            outcome = yield from queries.passed(self.runtime, self.session, frame, plan)
            kept = self._rows() if rows else BaseRows({})
        assert isinstance(outcome, Completed)
        return RunLine(
            tokens=tokens,
            raw={one.tap.site: one.raw for one in seen if one.raw is not None},
            residuals=tuple(self._by_line(one.raw) for one in borders if one.raw is not None),
            logits_V=outcome.logits_1V[0].clone(),
            overrides=overrides,
            rows=kept,
        )

    def _rows(self) -> BaseRows:
        """Return the keys and values of the pass that has just ended."""
        anatomy, layers = self.runtime.forward.anatomy, range(self.runtime.forward.layers)
        numbers = {number for layer in layers for number in anatomy.cache_layers_of(layer)}
        return BaseRows({number: whole_rows(self.session.cache, number) for number in sorted(numbers)})

    def expected_bytes(self, tokens: tuple[int, ...], taps: Iterable[Tap], *, residuals: bool, rows: bool) -> int:
        """Return the expected bytes of a sequence's tensors, as far as its taps know the sizes of their values."""
        forward = self.runtime.forward
        hidden = forward.anatomy.hidden_size
        widths = [(tap.width or hidden) * (tap.heads or 1) for tap in taps]
        widths += [hidden] * (forward.layers + 1 if residuals else 0)
        values = (len(tokens) * sum(widths) + self.runtime.description.vocab_size) * forward.model.dtype.itemsize
        position = sum(group.position_bytes for group in forward.geometry.groups) if rows else 0
        return values + len(tokens) * position

    def borders(self) -> list[Tap]:
        """Return the taps before each layer, and after the last."""
        layers = range(self.runtime.forward.layers)
        before = [self.runtime.resolve(Site(point="resid_pre", layer=layer)) for layer in layers]
        return [*before, self.runtime.resolve(Site(point="resid_post", layer=layers[-1]))]

    def logits(
        self, line: RunLine, tap: Tap, raw: Tensor, rules: Iterable[PassRule] = ()
    ) -> Generator[Blocked | None, None, Tensor]:
        """Return the logits of the sequence with `raw` in place at `tap`, and `rules` after it."""
        outcome = yield from self.passed(self._frame(line, tap, raw), self.plan(rules=rules))
        assert isinstance(outcome, Completed)
        return outcome.logits_1V[0].clone()

    def after_layer(
        self, line: RunLine, tap: Tap, raw: Tensor, layer: int, rules: Iterable[PassRule] = ()
    ) -> Generator[Blocked | None, None, Tensor]:
        """Return the hidden state [1, S, D] after `layer`, with `raw` in place at `tap`, and `rules` after it."""
        target = Target(tap=self.runtime.resolve(Site(point="resid_post", layer=layer)), step=0)
        outcome = yield from self.passed(self._frame(line, tap, raw), self.plan(rules=rules, halts=[target]))
        assert isinstance(outcome, Halted) and outcome.frame.hidden is not None
        return self._by_line(outcome.frame.hidden)

    def keys(
        self, line: RunLine, tap: Tap, raw: Tensor, numbers: Collection[int], rules: Iterable[PassRule] = ()
    ) -> Generator[Blocked | None, None, dict[int, KeyValues]]:
        """Return the sequence's keys and values in these layers of the cache, with `raw` at `tap`, and `rules` after
        it."""
        with queries.isolated(self.session):
            yield from queries.passed(self.runtime, self.session, self._frame(line, tap, raw), self.plan(rules=rules))
            return {number: whole_rows(self.session.cache, number) for number in numbers}

    def hidden(self, line: RunLine, boundary: int) -> Tensor:
        """Return the hidden state of a sequence between two layers, in the model's form."""
        return self.runtime.forward.anatomy.of_lines(line.residuals[boundary])

    def _by_line(self, hidden: Tensor) -> Tensor:
        return self.runtime.forward.anatomy.by_line(hidden)

    def _frame(self, line: RunLine, tap: Tap, raw: Tensor) -> Frame:
        own = Override(tap=tap, raw=raw)
        if self.from_the_start or not line.residuals:
            others = (one for one in line.overrides if not one.tap.same_tensor(tap))
            return Frame(tokens=line.tokens, committed=0, step=0, overrides=(*others, own))
        boundary, hidden = (
            (tap.boundary, raw) if tap.boundary is not None else (tap.stage, self.hidden(line, tap.stage))
        )
        return Frame(
            tokens=line.tokens,
            committed=0,
            step=0,
            boundary=boundary,
            hidden=hidden,
            overrides=() if tap.boundary is not None else (own,),
        )

    def plan(
        self, *, rules: Iterable[PassRule] = (), observers: Iterable[Recorded] = (), halts: Iterable[Target] = ()
    ) -> Plan:
        """Return the plan of a pass that counts nothing and does not yield to other jobs."""
        return make_plan(
            rules=rules,
            observers=observers,
            halts=halts,
            counted=False,
            yields=self.runtime.giving_way.asked,
            logits_of=self._logits_of,
        )

    def passed(self, frame: Frame, plan: Plan) -> Generator[Blocked | None, None, Halted | Completed]:
        """Run from `frame` to a halt of the plan or the end of the pass; nothing is committed."""
        with queries.isolated(self.session):
            return (yield from queries.passed(self.runtime, self.session, frame, plan))


# The reply of a job, with the parts that only its request knows.

Told = TypeVar("Told", EdgesAttributed, CircuitsRun, GraphMade)


def completed(
    steps: Generator[Blocked | None, None, Told],
    *,
    notes: tuple[str, ...],
    made: Callable[[Told], object],
    **told: object,
) -> Generator[Blocked | None, None, Told]:
    """Return the reply of `steps`, with these notes first, the other fields, and the recipe of its numbers: work that
    ended with its parts equals a smaller request."""
    reply: Told = yield from steps
    return msgspec.structs.replace(reply, notes=(*notes, *reply.notes), made=made(reply), **told)


# Prompts and metrics of sweeps, attributions and circuits, checked. Runs no pass.


class LineSources:
    """Finds the tokens of prompts, and the settings of their sessions."""

    def __init__(self, parts: MethodParts) -> None:
        self._sessions, self._runtime = parts.sessions, parts.runtime

    def tokens(self, line: LineSource) -> tuple[tuple[int, ...], tuple[str, ...]]:
        """Return a prompt's tokens, and a note where its session would not have run them as a sweep does. Raises
        UsageError and PromptTooLong."""
        if not isinstance(line, str):
            return self._checked(line), ()
        session = self._sessions.find(line)
        if not session.tokens:
            raise UsageError(f"Session {in_quotes(line)} has no tokens yet; run a prompt in it, or give the text.")
        return self._checked(tuple(session.tokens)), _notes_on(session)

    def metrics(self, texts: Sequence[str]) -> Metrics:
        """Return the metrics in these texts. Raises InvalidCondition."""
        return inspection.metrics_in(self._runtime, texts)

    def compute_like(self, lines: Sequence[LineSource | None], session: Session) -> None:
        """Have a session compute as the sessions do whose `lines` are named. Raises UsageError where these differ."""
        named = [self._sessions.find(line) for line in lines if isinstance(line, str)]
        for way, differs in (("attention", "compute attention in different ways"), ("adapter", "have other adapters")):
            if len({getattr(one, way) for one in named}) > 1:
                raise UsageError(f"The sessions of the two lines {differs}; give one of them by its text.")
        for one in named:
            session.compute_with(one.attention or session.attention, one.adapter or session.adapter)

    def _checked(self, tokens: tuple[int, ...]) -> tuple[int, ...]:
        bounds.require_fit(self._runtime.description, tokens, "A line")
        return tokens


def _notes_on(session: Session) -> tuple[str, ...]:
    if not session.rules_in_force and not reports.has_edits(session):
        return ()
    return (
        f"The rules and edits of session {in_quotes(label(session.name))} are no part of the sweep: it runs the tokens "
        "alone.",
    )
