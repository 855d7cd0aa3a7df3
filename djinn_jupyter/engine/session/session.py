"""A session: one line of work, its tokens, pages, stop, history, breakpoints, rules and watches. It moves by `states`.
With it are kept the requests that changed it, so that one that comes again is not done again."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeVar

import msgspec
from msgspec import UNSET, UnsetType
from torch import Tensor
from transformers import PreTrainedModel

from djinn_jupyter.engine.memory.kv.cache import PagedCache
from djinn_jupyter.engine.memory.offload.swappable import StorageTable
from djinn_jupyter.engine.passes.breakpoints import Breakpoint, FedLine, Rule, Watch
from djinn_jupyter.engine.passes.controller import SavedStates
from djinn_jupyter.engine.passes.frame import Frame
from djinn_jupyter.engine.session import states
from djinn_jupyter.engine.session.generation import Generation
from djinn_jupyter.engine.session.history import History, PassLog, StopEdit, StopRecord, fed_line
from djinn_jupyter.engine.session.residence import JobKind, Residence
from djinn_jupyter.errors import IllegalMove, UsageError
from djinn_jupyter.modules.engine.arithmetic import HeldAdapter
from djinn_jupyter.wire.arrays import Array
from djinn_jupyter.wire.base import Access, Frozen, OwnerName, Progress, SharedWith
from djinn_jupyter.wire.nouns import Exactness, Origin, PauseReason, SamplingChanges, SessionState, StopIdentity
from djinn_jupyter.wire.provenance import Provenance
from djinn_jupyter.wire.sessions import MoveId
from djinn_jupyter.wire.texts import in_quotes, label

MOST_PERSONS: Final = 100  # all of them are in every description of the session


class Moving(Frozen, frozen=True):
    """`origin` is the engine that the session leaves, `store` the address where it waits meanwhile (None: the folder of
    moves), `person` its owner at the other engine (None: its own user). It is kept in the journals of both engines, so
    that after a kill each checks the decision."""

    move: MoveId
    end: Literal["leaves", "arrives"]
    origin: Provenance
    store: str | None = None
    person: OwnerName | None = None


@dataclass(slots=True)
class MoveUnderWay:
    """`present` is None while the session is only in this engine. Until a move is decided the session answers
    nothing."""

    present: Moving | None = None

    def begin(self, moving: Moving) -> None:
        self.present = moving

    def end(self) -> None:
        self.present = None


class Grants:
    """The mapping is replaced whole, because the service reads it for each message."""

    def __init__(self) -> None:
        self._access: Mapping[str, Access] = {}

    @property
    def by_person(self) -> dict[str, Access]:
        return dict(self._access)

    def access(self, person: str) -> Access | None:
        return self._access.get(person)

    def grant(self, person: str, access: Access | None) -> None:
        """Grant a person this access in place of another; None revokes it. UsageError for more than MOST_PERSONS."""
        others = {name: given for name, given in self._access.items() if name != person}
        if access is not None and len(others) >= MOST_PERSONS:
            raise UsageError(
                f"A session is shared with at most {MOST_PERSONS} persons: take it back from one (--none)."
            )
        self._access = others if access is None else {**others, person: access}

    def take_over(self, given: Mapping[str, Access]) -> None:
        """Grant the same as an earlier session of the name."""
        self._access = dict(given)

    def describe(self) -> tuple[SharedWith, ...]:
        return tuple(SharedWith(person=person, access=access) for person, access in sorted(self._access.items()))


MOST_REQUESTS: Final = 32
MOST_BYTES: Final = 64 * 2**10  # of replies: each image in the journal has them


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestId:
    """A client, by a digest of its secret, and its number of a request. `again`: an earlier engine got it first."""

    client: bytes
    number: int
    again: bool = field(default=False, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class AnsweredRequest:
    """`done` is False while it is in progress. `reply` is None where none is kept."""

    client: bytes
    number: int
    done: bool
    reply: bytes | None = None


class AnsweredRequests:
    """The latest MOST_REQUESTS. `let_go` is, by client, the number up to which older ones were dropped."""

    def __init__(self) -> None:
        self._requests: dict[tuple[bytes, int], AnsweredRequest] = {}
        self._let_go: dict[bytes, int] = {}

    def __iter__(self) -> Iterator[AnsweredRequest]:
        return iter(self._requests.values())

    @property
    def let_go(self) -> dict[bytes, int]:
        return dict(self._let_go)

    def begin(self, known: RequestId) -> None:
        """Record that the work of a request begins, of which an image may have a part."""
        self._put(AnsweredRequest(client=known.client, number=known.number, done=False))

    def conclude(self, known: RequestId, reply: bytes | None) -> None:
        self._put(AnsweredRequest(client=known.client, number=known.number, done=True, reply=reply))

    def find(self, known: RequestId) -> AnsweredRequest | None:
        """Return a repeated request; one that was dropped without its reply."""
        found = self._requests.get((known.client, known.number))
        if found is None and known.again and known.number <= self._let_go.get(known.client, -1):
            return AnsweredRequest(client=known.client, number=known.number, done=True)
        return found

    def take_over(self, requests: Iterable[AnsweredRequest], let_go: Mapping[bytes, int]) -> None:
        """Keep what an earlier session of the name, or an earlier process, has kept."""
        self._let_go = dict(let_go)
        for one in requests:
            self._put(one)

    def _put(self, one: AnsweredRequest) -> None:
        self._requests.pop((one.client, one.number), None)
        self._requests[one.client, one.number] = one
        while len(self._requests) > MOST_REQUESTS:
            self._let_oldest_go()
        room = MOST_BYTES
        for key, kept in reversed(self._requests.items()):
            room -= len(kept.reply or b"")
            if room < 0 and kept.reply is not None:
                self._requests[key] = AnsweredRequest(client=kept.client, number=kept.number, done=True)

    def _let_oldest_go(self) -> None:
        oldest = self._requests.pop(next(iter(self._requests)))
        self._let_go[oldest.client] = max(oldest.number, self._let_go.pop(oldest.client, -1))
        if len(self._let_go) > MOST_REQUESTS:
            del self._let_go[next(iter(self._let_go))]


@dataclass(slots=True)
class WorkProgress:
    """`now` is None without work, or without a report of it; `told` is when a client was last notified. `ending` is
    None where there are no parts to reply with yet, and True where the work is to reply with the finished ones."""

    now: Progress | None = None
    told: float = -math.inf
    ending: bool | None = None

    def note(self, now: Progress) -> None:
        self.now = now

    def is_due(self, seconds: float) -> bool:
        """Return whether so many seconds have passed since the last notification, and then record a new one."""
        now = time.monotonic()
        due = now - self.told >= seconds
        self.told = now if due else self.told
        return due

    def can_end(self) -> bool:
        """Record that there are parts to reply with. Return True where the work is to end with them."""
        self.ending = self.ending or False
        return self.ending

    def end(self) -> bool:
        """End the work with its finished parts. Return False where there are none."""
        self.ending = None if self.ending is None else True
        return self.ending is not None


Key = TypeVar("Key", int, str)


@dataclass(slots=True, kw_only=True)
class Session:
    """`tokens` are all tokens, the first `cache.length` of which are committed. `needs_recompute`: its rows and states
    were lost with an earlier process, and are recomputed from the pass log before they are needed. `stop` numbers its
    present stop and `edition` the value there, None while it runs. Rows computed with another `attention` or `adapter`
    do not continue each other: both are chosen before the first pass."""

    name: str
    owner: str
    holder: str | None
    attention: str | None = None  # None: as the model was loaded
    adapter: HeldAdapter | None = None  # None: the model alone
    cache: PagedCache
    history: History
    state: SessionState = "idle"
    tokens: list[int] = field(default_factory=list)
    saved_states: SavedStates = field(default_factory=dict)
    pass_log: PassLog = field(default_factory=PassLog)
    exactness: Exactness = "exact"
    needs_recompute: bool = False
    frame: Frame | None = None  # the place of the present pass, None between runs
    edits: list[StopEdit] = field(default_factory=list)
    generation: Generation | None = None
    logits_1V: Tensor | None = None
    breakpoints: dict[int, Breakpoint] = field(default_factory=dict)
    rules: dict[int, Rule] = field(default_factory=dict)
    watches: dict[str, Watch] = field(default_factory=dict)
    numbers_given: int = 0
    runs: int = 0  # prompts so far
    forked_from: Origin | None = None
    shares: Grants = field(default_factory=Grants)
    answered: AnsweredRequests = field(default_factory=AnsweredRequests)
    used_by: str | None = None  # the holder whose magics act on it
    holder_notebook: str | None = None
    kept_for: str | None = None  # the notebook that it was recovered for, until that opens it
    left_by: str | None = None  # its holder in an earlier process, until one opens it
    moving: MoveUnderWay = field(default_factory=MoveUnderWay)
    temporary: bool = False  # it ends with its holder, and the journal does not have it
    stop: int | None = None
    edition: int | None = None
    last_edition: int = 0
    rule_numbers_given: int = 0
    plan_version: int = 0
    work: JobKind | None = None  # the kind of job that works on it now; set by the scheduler
    progress: WorkProgress = field(default_factory=WorkProgress)  # of such work
    pause_requested: PauseReason | None = None
    residence: Residence = field(default_factory=Residence)
    storage_table: StorageTable | None = None  # the engine's, of tensors that are not pages, once it is in its table
    last_used: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self.last_edition = max(self.last_edition, self.edition or 0)
        if self.stop is None:
            self.number_stop()

    @property
    def committed(self) -> int:
        """The number of committed positions, even where their rows are lost."""
        return self.pass_log.end if self.needs_recompute else self.cache.length

    @property
    def generations(self) -> list[Generation]:
        """The generations of its stops and its own, each once."""
        generations = {id(stop.generation): stop.generation for stop in self.history.stops}
        if self.generation is not None:
            generations[id(self.generation)] = self.generation
        return list(generations.values())

    def lose_rows(self) -> None:
        """Drop rows and states that are unreadable; they will be recomputed."""
        self.cache.free()
        for generation in self.generations:
            generation.states = {length: {} for length in generation.states}  # recomputed at the same lengths
        if self.storage_table is not None:
            self.storage_table.note_freed()
        self.residence.storages_known = None  # a running copy may hold storages that it no longer has
        self.needs_recompute, self.exactness = True, "recomputed"

    def break_off(self) -> None:
        """End a run that cannot continue: the session is idle at its last committed step."""
        away = bool(self.saved_states) and not self.residence.present  # recomputed from its tokens
        self.lose_rows() if away else self.cache.restore_all(self.saved_states)
        self.saved_states.clear()
        self.frame = None
        self.history.present = None
        self.move("fail")
        self.residence.touch()

    def drop_unread_prompt(self) -> None:
        """Drop a prompt of which nothing is committed, so that its run can be requested again."""
        if self.generation is not None and self.committed <= self.generation.fed_from:
            del self.tokens[self.generation.extends :]

    def move(self, move: states.SessionMove) -> None:
        self.state = states.after(self.state, move, self.name)
        self.last_used = time.monotonic()
        self.number_stop()

    def number_stop(self) -> None:
        """Number its present stop, unlike any other stop of its name; None while it runs."""
        self.stop = self.edition = None if self.state == "running" else self.next_edition()

    def next_edition(self) -> int:
        """Return a number that no stop or edition of its name had, and that forks keep for shared stops: the clock in
        microseconds, below 2^53 for JavaScript."""
        self.last_edition = max(self.last_edition + 1, time.time_ns() // 1000)
        return self.last_edition

    @property
    def stop_identity(self) -> StopIdentity | None:
        """The stop and edition that a view reads now; None while it runs."""
        if self.stop is None or self.edition is None:
            return None
        return StopIdentity(session=self.name, number=self.stop, edition=self.edition)

    def check_move(self, move: states.SessionMove) -> None:
        """Raise the error that `move` would raise, and change nothing."""
        states.after(self.state, move, self.name)

    def check_stop(self, seen: StopIdentity) -> None:
        """Raise IllegalMove unless it stands at the stop and the edition that the client sees."""
        if self.stop_identity == seen:
            return
        name = in_quotes(label(self.name))
        if self.stop == seen.number and self.frame is not None:
            raise IllegalMove(f"Session {name} was edited meanwhile: the stop you see is gone. Look again, then go on.")
        now = f"stands at {self._place}" if self._place is not None else f"is {self.state}"
        raise IllegalMove(f"Session {name} has moved on meanwhile and {now}: the stop you see is gone.")

    @property
    def _place(self) -> str | None:
        """The site and the step of a stopped pass; None without one."""
        stop = self.history.here if self.state == "paused" else None
        return None if stop is None else f"{stop.site}, step {stop.frame.step}"

    # --- how its passes are computed --------------------------------------------------------------------------------

    @property
    def as_loaded(self) -> bool:
        """True where passes are the model's as loaded: only such are shared with other sessions."""
        return self.attention is None and self.adapter is None

    @property
    def why_alone(self) -> str:
        """The reason why its passes are not shared, as `passes of eager attention`."""
        named = [] if self.attention is None else [f"of {self.attention} attention"]
        named += [] if self.adapter is None else [f"with the adapter {self.adapter.name}"]
        return f"passes {' and '.join(named)}"

    def compute_with(self, attention: str | None, adapter: HeldAdapter | None) -> None:
        """Use this attention and this adapter, from the first pass on."""
        self.attention, self.adapter = attention, adapter

    def require_computable(self) -> None:
        """Raise UsageError where its adapter is missing."""
        if self.adapter is not None:
            _ = self.adapter.present

    # --- its holder ----------------------------------------------------------------------------------------------

    @property
    def notebook(self) -> str | None:
        """The notebook that it belongs to."""
        return self.kept_for or self.holder_notebook

    def attach(self, holder: str, notebook: str | None) -> None:
        """Record the holder that has it open from now on."""
        self.holder, self.holder_notebook, self.left_by = holder, notebook, None
        self.kept_for = None if notebook == self.kept_for else self.kept_for

    def detach(self) -> None:
        """Record that its holder has gone, or has released it."""
        self.holder = self.holder_notebook = None

    def keep_for(self, notebook: str | None, left_by: str | None = None) -> None:
        """Record that it belongs to this notebook, whose kernel has not opened it again yet, and its former holder."""
        self.kept_for, self.left_by = notebook, left_by

    def use(self, holder: str | None) -> None:
        """Record that the holder's magics act on it; None: they act on another one."""
        self.used_by = holder

    # --- what happens in its passes --------------------------------------------------------------------------------

    def set_breakpoint(self, made: Breakpoint) -> None:
        """Set a new or changed breakpoint. Numbers of breakpoints are never reused."""
        self.breakpoints[made.number], self.numbers_given = made, max(self.numbers_given, made.number)
        self.plan_version += 1

    def steer(self, rule: Rule) -> None:
        """Set a new rule, or turn one on or off. Numbers of rules are never reused."""
        self.rules[rule.number], self.rule_numbers_given = rule, max(self.rule_numbers_given, rule.number)
        self.plan_version += 1

    def watch(self, watch: Watch) -> None:
        self.watches[watch.key] = watch
        self.plan_version += 1

    def remove(self, found: dict[Key, Any], keys: Iterable[Key]) -> None:
        """Remove some of its breakpoints, rules or watches."""
        for key in keys:
            del found[key]
        self.plan_version += 1

    # --- how its line goes on --------------------------------------------------------------------------------------

    def begin_work(self, kind: JobKind) -> None:
        """Record that a job works on it from now on, waiting since its request."""
        self.work, here = kind, self.residence
        here.ask()
        here.work_begun, here.asked = here.asked, math.inf

    def end_work(self) -> None:
        self.work, self.progress, self.residence.work_begun = None, WorkProgress(), math.inf

    def begin_anew(self) -> None:
        """Drop the earlier tokens for another prompt; rules and watches count from here."""
        line = fed_line(self.tokens, self.pass_log, self.exactness, self.history.arrived, self.rules_in_force)
        self.history.clear()
        self.edits.clear()
        self.pass_log.cut(0)
        self.exactness, self.needs_recompute = "exact", False
        for rule in self.rules.values():
            rule.reset()
        self.runs += 1
        for watch in self.watches.values():
            watch.begin_run(self.runs, line)

    def take_generation(self, generation: Generation, tokens: list[int], *, token_by_token: bool) -> None:
        """Prepare the first pass of a generation, some of whose tokens may be committed already."""
        self.saved_states.clear()
        self.tokens, self.generation, self.logits_1V = tokens, generation, None
        self.begin_pass(token_by_token=token_by_token)

    def drawing(self, model: PreTrainedModel, changes: SamplingChanges | UnsetType) -> Generation | None:
        """Return its generation with other settings of sampling from the stop on, or as it is. Raises IllegalMove where
        it is not stopped, UsageError for settings that change nothing."""
        if changes is UNSET:
            return self.generation
        self.check_move("go_on")
        assert self.generation is not None
        return self.generation.changed(model, changes, len(self.generation.new_tokens(self.tokens)))

    def draw_with(self, generation: Generation | None) -> None:
        """Choose the next tokens with the settings of this generation."""
        self.generation = generation

    def leave_stop(self, move: states.SessionMove) -> None:
        """Leave the present stop, if any."""
        self.pause_requested = None
        self.move(move)
        self.history.present = None

    def keep_logits(self, logits_1V: Tensor) -> None:
        """Keep the logits of a pass that reached the last token; earlier ones leave the accounting."""
        table = self.storage_table
        before = None if self.logits_1V is None or table is None else table.known(self.logits_1V)
        self.logits_1V = logits_1V
        if table is not None:
            table.let_go(before)

    def stop_at(self, frame: Frame) -> None:
        """Stop at `frame`."""
        self.frame, self.pause_requested = frame, None
        self.edits.clear()
        self.move("stop")

    def finish(self) -> None:
        """End the run; its tokens may be extended later."""
        self.frame = None
        self.history.present = None
        self.pause_requested = None
        self.move("finish")

    def request_pause(self, reason: PauseReason = "interrupt") -> bool:
        """Ask the run to pause, or work in parts to end with the finished ones. Return True where there is either."""
        if self.progress.end():
            return True
        self.pause_requested = reason if self.state == "running" else None
        return self.pause_requested is not None

    def set_edits(self, frame: Frame, edits: list[StopEdit]) -> None:
        """Set the edits of the stop and the resulting value."""
        self.frame, self.edits, self.edition = frame, edits, self.next_edition()

    def take_cache(self, cache: PagedCache) -> None:
        """Take an empty cache for another prompt, or for recomputation; the former one is free."""
        self.cache = cache

    def count_as(self, exactness: Exactness) -> None:
        """Record from now on how its rows were made."""
        self.exactness = exactness

    def count_rows(self, cache: PagedCache) -> None:
        """Record that a cache has the lost rows and states, if it is the session's."""
        self.needs_recompute = self.needs_recompute and self.cache is not cache

    def inherit_rows(self, cache: PagedCache, exactness: Exactness) -> None:
        """Take the rows and states that an earlier process left on disk in place of the lost ones."""
        self.cache, self.needs_recompute, self.exactness = cache, False, exactness
        self.residence.state, self.residence.inherited = "disk", True

    @property
    def rules_in_force(self) -> tuple[Rule, ...]:
        """The rules that are on."""
        return tuple(rule for rule in self.rules.values() if rule.enabled)

    @property
    def edits_in_force(self) -> tuple[str, ...]:
        """The texts of the present stop's edits that are on."""
        return tuple(edit.what for edit in self.edits if edit.enabled)

    def begin_pass(self, *, token_by_token: bool) -> None:
        """Stand before the pass over the uncommitted tokens; over the first alone where a family is fed token by
        token."""
        committed = self.cache.length
        pending = self.tokens[committed:]
        fed = pending[:1] if token_by_token and committed else pending
        self.frame = Frame(tokens=tuple(fed), committed=committed, step=self.step_at(committed + len(fed)))

    def step_at(self, end: int) -> int:
        """Return 0 for a pass that feeds prompt tokens, n for one that feeds the n-th generated token."""
        return 0 if self.generation is None else max(0, end - self.generation.begins)

    def stand_at(self, stop: StopRecord) -> None:
        """Restore generation, tokens, sampler and frame of a stop."""
        self.generation = stop.generation
        self.generation.sampler.generator.set_state(stop.generator)
        self.cut(list(stop.tokens), stop.frame.committed)
        self.frame = stop.frame
        self.edits.clear()

    def cut(self, tokens: list[int], committed: int) -> None:
        """Shorten the session to `tokens`, the first `committed` of them committed."""
        assert self.generation is not None
        self.tokens = tokens
        new = max(0, len(tokens) - self.generation.begins)
        del self.generation.drawn[new:], self.generation.log_probabilities[new:]
        for length in [length for length in self.generation.states if length > committed]:
            del self.generation.states[length]  # the tokens there may change now
        self.cache.rewind(committed)
        self.pass_log.cut(committed)


Part = TypeVar("Part")
TOKEN_BYTES: Final = 8  # of a token in a tuple, whose number is shared with the line
POSITION_BYTES: Final = 40  # of a position in a tuple, with its number


def arrays_within(value: object) -> Iterator[Array]:
    """Yield the arrays of a message, or of a part of one."""
    return parts_within(value, Array)


def parts_within(value: object, kind: type[Part]) -> Iterator[Part]:
    """Yield the parts of this kind of structs and what they hold."""
    if isinstance(value, kind):
        yield value
    elif isinstance(value, msgspec.Struct):
        for name in value.__struct_fields__:
            yield from parts_within(getattr(value, name), kind)
    elif isinstance(value, tuple | list | dict):
        for part in value.values() if isinstance(value, dict) else value:
            yield from parts_within(part, kind)


def given_arrays(session: Session) -> Iterator[Array]:
    """Yield the arrays of the session's rules and edits, which passes copy to the device."""
    for rule in session.rules.values():
        yield from arrays_within(rule.edit)
    for edit in session.edits:
        yield from arrays_within(edit.edit)


def past_arrays(session: Session) -> Iterator[Array]:
    """Yield the arrays of rules under which passes were run, including removed ones: such passes are run again."""
    each = [one.rules for one in session.pass_log.passes]
    each += [one.rules for line in _lines(session) for one in line.passes]
    for rule in {id(rule): rule for rules in each for rule in rules}.values():
        yield from arrays_within(rule.edit)


def recorded(session: Session) -> Iterator[tuple[object, int]]:
    """Yield what the session keeps on the host besides its tokens, each with its bytes; forks share them."""
    yield from ((array, array.nbytes) for array in past_arrays(session))
    kept: list[StopRecord | Frame | FedLine] = [*session.history.stops, *_frames(session), *_lines(session)]
    yield from ((one.tokens, TOKEN_BYTES * len(one.tokens)) for one in kept)
    for watch in session.watches.values():
        yield watch.values, watch.bytes_held
        yield watch.positions, POSITION_BYTES * sum(map(len, watch.positions))
        if watch.unit is not None:
            yield watch.unit, watch.unit.nbytes
    for rule in session.rules.values():
        yield rule, rule.bytes_recorded
    for generation in session.generations:
        yield generation.drawn, sum(state.nbytes for state in generation.drawn[:1]) * len(generation.drawn)
    yield from ((edit, edit.rows_nHD.nbytes) for edit in session.pass_log.edited)
    yield from ((raw, raw.nbytes) for raw in _overrides(session) if not _is_item(session, raw))


def copies_on_device(session: Session) -> Iterator[Tensor]:
    """Yield what its rules keep of their arrays on the device."""
    for rule in session.rules.values():
        yield from rule.copies


def _lines(session: Session) -> Iterator[FedLine]:
    for watch in session.watches.values():
        yield from watch.lines.values()


def _frames(session: Session) -> Iterator[Frame]:
    kept = [frame for stop in session.history.stops for frame in (stop.frame, stop.left_as)]
    kept += [session.frame, *(passes.entry for passes in session.pass_log.passes)]
    yield from (frame for frame in kept if frame is not None)


def _overrides(session: Session) -> Iterator[Tensor]:
    """Yield the overrides of stopped passes."""
    for passes in session.pass_log.passes:
        yield from () if passes.entry is None else (override.raw for override in passes.entry.overrides)


def _is_item(session: Session, kept: Tensor) -> bool:
    """Return whether the engine can move the bytes: not those on the host, where the device is another."""
    return session.storage_table is not None and kept.device in session.storage_table.devices
