"""Open, describe, fork and close sessions; save and restore them; move them off the device and back. The
weights, which all sessions share, are read here too."""

from __future__ import annotations

import threading
from collections.abc import Collection, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Final

import msgspec
from msgspec import UNSET, UnsetType
from torch import Tensor

from djinn_jupyter.engine.loop.dispatch import SessionLifecycle
from djinn_jupyter.engine.loop.mailbox import Holder
from djinn_jupyter.engine.loop.owners import Owners
from djinn_jupyter.engine.loop.parts import BuiltOfParts, EngineParts
from djinn_jupyter.engine.loop.scheduler import Underway
from djinn_jupyter.engine.memory.kv.cache import PagedCache
from djinn_jupyter.engine.memory.kv.rows import Rows, put_rows, take_rows
from djinn_jupyter.engine.passes.breakpoints import Rule
from djinn_jupyter.engine.passes.forward import device_memory_for
from djinn_jupyter.engine.passes.weight_reader import WeightReader
from djinn_jupyter.engine.requests.handlers import handles
from djinn_jupyter.engine.residency.residency import Residency
from djinn_jupyter.engine.session import reports, table
from djinn_jupyter.engine.session.generation import GenerationCopies
from djinn_jupyter.engine.session.history import History
from djinn_jupyter.engine.session.queries import edit_cached
from djinn_jupyter.engine.session.residence import Blocked, Pieces, Steps
from djinn_jupyter.engine.session.session import Session, parts_within
from djinn_jupyter.engine.store import checkpoint_files, dump, load
from djinn_jupyter.engine.store.checkpoint_files import UntilDone
from djinn_jupyter.engine.store.image import SessionImage
from djinn_jupyter.engine.store.records import values_of
from djinn_jupyter.engine.system.arrays import to_array
from djinn_jupyter.errors import CheckpointRefused, IllegalMove, SessionHeld, UnknownSession, UsageError
from djinn_jupyter.wire import replies
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.edits import Edit, dosed
from djinn_jupyter.wire.nouns import CheckpointDescription, Origin, SamplingChanges, StopDescription, Transfer
from djinn_jupyter.wire.readings import Branch
from djinn_jupyter.wire.texts import NOTEBOOK, distinct_labels, in_quotes, label, require_showable
from djinn_jupyter.wire.weights import parse_weight


class SessionRequests(BuiltOfParts):
    def __init__(self, parts: EngineParts, life: SessionLifecycle) -> None:
        super().__init__(parts)
        self._life = life

    @handles(ask.Open)
    def open_(self, request: ask.Open, holder: Holder) -> replies.Opened:
        session = self._sessions.get(request.session)
        if session is None:
            require_name(request.session, self._sessions)
            session = _empty(
                self._parts, request.session, holder.user, holder.name, holder.notebook, temporary=request.temporary
            )
            self._life.begin(session)
            note = self._left_out(request.session)
            return replies.Opened(session=reports.describe(session), created=True, note=note)
        held = session.holder not in (None, holder.name) and not self._residency.holder_has_gone(session)
        if held and not (request.join or (request.fresh and request.force)):
            shown = distinct_labels(self._sessions)[session.name]
            raise SessionHeld(
                f"Session {in_quotes(shown)} {table.whose(session)}; to enter it all the same, add --join "
                f"(%djinn_use {shown} --join, or %djinn_load; in Python join=True), or use another name."
            )
        if request.fresh:
            session = self._forget(session)
        if not held:
            session.attach(holder.name, holder.notebook)
        return replies.Opened(session=reports.describe(session), created=False)

    def _left_out(self, session: str) -> str | None:
        why = self._persistence.left_out(session)
        return why and (
            f"What an earlier engine kept of session {in_quotes(label(session))} is set aside, so it begins empty: "
            f"{why} It comes back with an engine that it fits; the log (%djinn_log, `djinn log`) names the file."
        )

    def _forget(self, session: Session) -> Session:
        """Replace a session by a new one of the same name, and return that; refused while it runs."""
        if session.state == "running":
            raise IllegalMove(f"Session {in_quotes(session.name)} is running; pause it before it is made fresh.")
        where = session.holder, session.holder_notebook
        fresh = _empty(self._parts, session.name, session.owner, *where, temporary=session.temporary)
        self._life.replace(session, fresh)
        return fresh

    @handles(ask.Describe)
    def describe(self, request: ask.Describe, session: Session, holder: Holder) -> replies.Described:
        return replies.Described(session=reports.describe(session))

    @handles(ask.SetAttention)
    def set_attention(self, request: ask.SetAttention, session: Session, holder: Holder) -> replies.Described:
        """Choose the attention of an empty session; its points are those of that attention."""
        own = self._forward.attention
        if request.attention != (session.attention or own):
            if session.tokens or session.breakpoints or session.rules or session.watches:
                raise IllegalMove(
                    f"Session {in_quotes(session.name)} has a line, breakpoints, rules or watches, which are of "
                    f"{session.attention or own} attention; choose another in a new session."
                )
            if request.attention != own and request.attention != "eager":
                raise UsageError(
                    f"This engine computes {own} attention, and sessions of it that or eager; load the model with "
                    f"--attention {request.attention}."
                )
            self._forward.attending(request.attention)
            session.compute_with(None if request.attention == own else request.attention, session.adapter)
        return replies.Described(session=reports.describe(session))

    @handles(ask.Detach)
    def detach(self, request: ask.Detach, session: Session, holder: Holder) -> replies.Detached:
        if session.holder == holder.name:
            session.detach()
        return replies.Detached()

    @handles(ask.Close)
    def close(self, request: ask.Close, session: Session, holder: Holder) -> replies.Closed:
        return replies.Closed(pages_freed=self._life.close(session))

    @handles(ask.Fork)
    def fork(self, request: ask.Fork, session: Session, holder: Holder) -> replies.Opened:
        parent = session
        require_showable(request.name, "The name of a session")
        _require_free(request.name, self._sessions)
        changes = _changes(request)
        drawing = parent.drawing(self._forward.model, changes)
        changed = _dosed(parent, request)
        self._residency.set_aside_now(parent.cache.recurrent_bytes)
        generations = GenerationCopies()
        child = Session(
            name=request.name,
            owner=holder.user,
            holder=holder.name,
            holder_notebook=holder.notebook,
            cache=parent.cache.fork(),
            history=parent.history.copy(generations),
            state=parent.state,
            tokens=list(parent.tokens),
            saved_states=dict(parent.saved_states),
            pass_log=parent.pass_log.copy(),
            exactness=parent.exactness,
            frame=parent.frame,
            edits=list(parent.edits),
            generation=None if drawing is None else generations(drawing),
            logits_1V=parent.logits_1V,
            breakpoints={number: replace(b) for number, b in parent.breakpoints.items()},
            rules={**{number: rule.copy() for number, rule in parent.rules.items()}, **changed},
            numbers_given=parent.numbers_given,
            runs=parent.runs,
            attention=parent.attention,
            adapter=parent.adapter,
            forked_from=_origin(parent),
            rule_numbers_given=parent.rule_numbers_given,
        )
        if changes is not UNSET and child.generation is not None:
            child.history.draw_with(child.generation)
        if request.edit is not None:
            self._edit_cached(parent, child, request, request.edit)
        self._life.begin(child)
        self._residency.accounted(child)
        return replies.Opened(session=reports.describe(child), created=True)

    def _edit_cached(self, parent: Session, child: Session, request: ask.Fork, edit: Edit) -> None:
        """Edit committed keys or values of a fork before it joins the table; it begins at this place."""
        try:
            if request.site is None:
                raise UsageError("An edit of committed keys or values needs their site, such as k_rot.5[0] or v.5.")
            site = self._runtime.site(request.site)
            edit_cached(self._runtime.of(child), child, edit, site, request.positions, request.words)
        except BaseException:
            child.cache.free()
            raise
        child.history.keep_present(f"Those are stops of {in_quotes(label(parent.name))}, before the edit of this fork.")

    @handles(ask.SwapOut)
    def swap_out(self, request: ask.SwapOut, session: Session, holder: Holder) -> Steps[replies.Swapped]:
        self._residency.require_tier(request.tier)
        self._residency.owner_budgets.require_place(session, request.tier)
        if session.state == "running":
            raise IllegalMove(f"Session {in_quotes(session.name)} is running; pause it before it leaves the device.")
        yield from self._residency.settled(session)
        before = session.residence.last_transfer
        self._residency.swap_out(session, request.tier)
        yield from self._residency.settled(session)
        return _swapped(session, before)

    @handles(ask.SwapIn)
    def swap_in(self, request: ask.SwapIn, session: Session, holder: Holder) -> Steps[replies.Swapped]:
        before = session.residence.last_transfer
        if session.residence.present:
            return replies.Swapped(session=reports.describe(session), transfer=None)
        self._residency.swap_in(session)
        yield from self._residency.settled(session)
        return _swapped(session, before)

    @handles(ask.Rest)
    def rest(self, request: ask.Rest, session: Session, holder: Holder) -> replies.Described:
        self._residency.announce_rest(session, request.expected_seconds)
        return replies.Described(session=reports.describe(session))

    @handles(ask.Note)
    def note(self, request: ask.Note, session: Session, holder: Holder) -> replies.Noted:
        """Record a notebook's activity. Any client may report it: its kernel, or the server of its window."""
        if request.activity == "in_use":
            self._use(session, holder)
        self._residency.note(session, request.activity)
        return replies.Noted()

    def _use(self, session: Session, holder: Holder) -> None:
        """Make this session the one that the holder's magics act on."""
        for other in self._sessions.values():
            if other.used_by == holder.name:
                other.use(None)
                self._sessions.touch(other.name)
        session.use(holder.name)

    @handles(ask.ReadTree)
    def read_tree(self, request: ask.ReadTree, holder: Holder) -> replies.Tree:
        most = max(1, STOPS_TOLD // max(1, len(self._sessions)))
        return replies.Tree(branches=tuple(self._branch(session, most) for session in self._sessions.values()))

    def _branch(self, session: Session, most: int) -> Branch:
        """Return a session's branch with `most` of its stops: the last ones, or those from the present one on."""
        here = session.history.present
        first = max(0, len(session.history.stops) - most)
        first = first if here is None else min(first, here)
        return Branch(
            session=session.name,
            state=session.state,
            stops=tuple(_stops(session, first, most)),
            present=None if here is None else here - first,
            tokens=len(session.tokens),
            text=self._runtime.tokenizer.decode(session.tokens[-TOKENS_TOLD:]),
            forked_from=session.forked_from,
            stop=session.stop_identity,
            dropped=session.history.dropped + first,
        )


def _empty(
    parts: EngineParts,
    name: str,
    owner: str,
    holder: str | None,
    notebook: str | None = None,
    *,
    temporary: bool = False,
) -> Session:
    return Session(
        name=name,
        owner=owner,
        holder=holder,
        holder_notebook=notebook,
        temporary=temporary,
        cache=parts.runtime.space.new_cache(),
        history=History(kept=parts.config.stops_kept),
    )


def _changes(request: ask.Fork) -> SamplingChanges | UnsetType:
    """Return the fork's settings of sampling with its seed, if it has any."""
    if request.seed is None:
        return request.sampling
    given = SamplingChanges() if request.sampling is UNSET else request.sampling
    return msgspec.structs.replace(given, seed=request.seed)


def _dosed(parent: Session, request: ask.Fork) -> dict[int, Rule]:
    """Return the rule that has another coefficient in the fork, by its number. Raises UsageError."""
    if request.coef is None:
        return {}
    rule = dosed(parent.rules.values(), request.rule)
    return {rule.number: rule.with_coefficient(request.coef)}


def require_name(name: str, names: Collection[str]) -> None:
    """Raise UsageError where no session can be opened under that name. A notebook's own path needs no free label."""
    require_showable(name, "The name of a session")
    if name in names or not name.endswith(NOTEBOOK):
        _require_free(name, names)


def _require_free(name: str, names: Collection[str]) -> None:
    """Raise UsageError where a session has that name or displays it: a label must mean one session."""
    there = name if name in names else next((one for one in names if label(one) == label(name)), None)
    if there is not None:
        full = "" if there == name else f" (in full {there})"
        raise UsageError(f"There is a session {in_quotes(label(name))} already{full}; choose another name or close it.")


def _origin(parent: Session) -> Origin:
    stops = parent.history.stops
    last = parent.history.here or (stops[-1] if stops else None)
    return Origin(session=parent.name, stop=None if last is None else last.number, tokens=len(parent.tokens))


def brought(session: Session, sessions: table.SessionTable, residency: Residency) -> Pieces:
    """Yield steps until the session's bytes are on the device. Raises the error that prevents it."""
    if not session.residence.present:
        residency.need(session)
        yield from residency.settled(session)
    if sessions.get(session.name) is not session or not session.residence.present:
        raise session.residence.error or UnknownSession(f"Session {in_quotes(session.name)} was closed meanwhile.")


TakingRows = Generator[None, None, tuple[Rows, ...]]


class WholeImages(BuiltOfParts):
    """Save sessions to checkpoints and restore them: whole images of sessions, with their rows and states, and sessions
    made from such images."""

    def rows(self, session: Session) -> TakingRows:
        """Take the rows of a session step by step, including those of a stopped pass."""
        end = session.cache.length if session.frame is None else session.frame.committed + len(session.frame.tokens)
        return take_rows(session.cache, end)

    @contextmanager
    def image(self, session: Session, rows: Sequence[Rows]) -> Iterator[SessionImage]:
        """Yield the image of a session, whose tensors stay where they are meanwhile."""
        groups = zip(self._forward.geometry.groups, rows, strict=True)
        image = dump.dump_session(session, tuple(dump.group_rows(group, taken) for group, taken in groups))
        with self._residency.pinned((*table.own_tensors(session), *table.past_tensors(session))):
            yield dump.with_values(
                image,
                self._storage_table.is_away,
                lambda tensor: values_of(self._storage_table, tensor).clone(),
            )

    def describe(self, name: str, image: SessionImage) -> CheckpointDescription:
        """Return the list entry of a file that is about to get the image."""
        model = self._runtime.description
        return checkpoint_files.describe(name, image, model.name, model.dtype)

    def empty(self, name: str, holder: Holder) -> Session:
        """Return a session whose work is to be made from an image."""
        return _empty(self._parts, name, holder.user, holder.name)

    def placed(
        self, image: SessionImage, source: str, name: str, holder: Holder, waits: Session
    ) -> Generator[Blocked | None, None, Session]:
        """Return a session like the image, with its rows and states, not yet in the table. `source` names the file in a
        refusal; `waits` is the session whose job this is. Raises SlabFull where no room can be freed, and OverQuota
        where the person may not have so much."""
        need = _bytes_at_once(image)
        yield from self._residency.set_aside(waits, need, of_owner_budget=need)
        session = load.load_session(
            self._runtime,
            image,
            name=name,
            owner=holder.user,
            holder=holder.name,
            stops_kept=self._parts.config.stops_kept,
        )
        try:
            self._residency.note_tensors(table.own_tensors(session))
            self._residency.put_back()
            rows = load.rows_of(self._runtime, image)
            yield from self._put(session.cache, rows, image.committed, waits)
            session.cache.restore_all(load.states_of(self._runtime, image.states or {}))
            self._residency.note_tensors(
                (*table.tensors_of_states(session.cache.live_states()), *table.past_tensors(session))
            )
        except checkpoint_files.CRAFTED as error:
            session.cache.free()
            raise CheckpointRefused(f"{source} is refused. What it holds does not fit this engine: {error}.") from error
        except BaseException:
            session.cache.free()
            raise
        return session

    def _put(
        self, cache: PagedCache, rows: Sequence[Rows], length: int, waits: Session
    ) -> Generator[Blocked | None, None, None]:
        """Put rows into pages, once there is room for them."""
        need = bytes_of(rows)

        def begun() -> Generator[None, None, None]:
            steps = put_rows(cache, rows, length)
            next(steps, None)
            return steps

        yield from (yield from self._residency.with_room(waits, lambda: need, begun, of_owner_budget=lambda: need))


def _bytes_at_once(image: SessionImage) -> int:
    """Return the bytes that an image takes on the device at once, without the ends of pages: older stops may leave."""
    present = () if image.frame is None else image.frames[image.frame : image.frame + 1]
    kept = parts_within((*present, image.logits, image.states, image.rows), Tensor)
    return sum({id(tensor): tensor.nbytes for tensor in kept}.values())


def bytes_of(rows: Sequence[Rows]) -> int:
    return sum(tensor.nbytes for group in rows for pair in group.runs for tensor in pair)


class CheckpointRequests(BuiltOfParts):
    """Save sessions to checkpoint files and restore them. The engine's thread gathers and places values; `until_done`
    makes the steps that wait for file work."""

    def __init__(
        self, parts: EngineParts, life: SessionLifecycle, owners: Owners, images: WholeImages, until_done: UntilDone
    ) -> None:
        super().__init__(parts)
        self._life, self._owners, self._images, self._until_done = life, owners, images, until_done

    @handles(ask.SaveCheckpoint)
    def save_checkpoint(
        self, request: ask.SaveCheckpoint, session: Session, holder: Holder
    ) -> Steps[replies.CheckpointSaved]:
        folder = self._persistence.checkpoints
        folder.file_of(request.name)
        if not request.replace:
            folder.require_free(request.name)
        rows = yield from self._images.rows(session)
        self._require_disk(session, rows, request, holder)
        with self._images.image(session, rows) as image:
            described = self._images.describe(request.name, image)
            saved, where = yield from self._write(request, image, described)
        return replies.CheckpointSaved(checkpoint=saved, path=where)

    def _require_disk(
        self, session: Session, rows: Sequence[Rows], request: ask.SaveCheckpoint, holder: Holder
    ) -> None:
        """Raise OverQuota where the file would exceed the caller's disk quota."""
        if holder.person is None:
            return
        beside = sum(storage.nbytes for storage in table.all_storages_of(session, self._storage_table))
        there = self._persistence.checkpoints.size_of(request.name)
        self._residency.owner_budgets.require_less(holder.person, more_on_disk=max(0, bytes_of(rows) + beside - there))

    def _write(
        self, request: ask.SaveCheckpoint, image: SessionImage, told: CheckpointDescription
    ) -> Generator[Blocked | None, None, tuple[CheckpointDescription, str]]:
        folder, abandoned = self._persistence.checkpoints, threading.Event()
        write = self._persistence.file_worker.start(
            lambda: folder.save(request.name, image, told, replace=request.replace, abandoned=abandoned)
        )
        try:
            saved: tuple[CheckpointDescription, str] = yield from self._until_done(write)
            return saved
        finally:
            abandoned.set()

    @handles(ask.RestoreCheckpoint)
    def restore_checkpoint(self, request: ask.RestoreCheckpoint, holder: Holder) -> Underway:
        """Restore a session, which joins the engine's when it is complete; until then nothing changes."""
        self._check_place(request)
        empty = self._images.empty(request.session, holder)
        return Underway(session=empty, steps=self._restore(request, holder, empty))

    def _restore(self, request: ask.RestoreCheckpoint, holder: Holder, waits: Session) -> Steps[replies.Opened]:
        folder, worker = self._persistence.checkpoints, self._persistence.file_worker
        image, where = yield from self._until_done(worker.start(lambda: folder.load(request.name)))
        session = yield from self._images.placed(image, where, request.session, holder, waits)
        try:
            self._owners.require_own(request, holder)  # again: another may have opened it while the file was read
            self._check_place(request)
        except BaseException:
            session.cache.free()
            raise
        session.attach(holder.name, holder.notebook)
        before = self._sessions.get(request.session)
        if before is None:
            self._life.begin(session)
        else:
            self._life.replace(before, session)
        return replies.Opened(session=reports.describe(session), created=True)

    def _check_place(self, request: ask.RestoreCheckpoint) -> None:
        """Raise the error that prevents opening or replacing a session of that name now."""
        there = self._sessions.get(request.session)
        if there is None:
            return require_name(request.session, self._sessions)
        if not request.replace:
            raise UsageError(
                f"There is a session {in_quotes(there.name)} already; restore under another name, or replace "
                "it (--replace)."
            )
        if there.work == "run":
            raise IllegalMove(f"Session {in_quotes(there.name)} is running; pause it before it is replaced.")

    @handles(ask.AcceptRecomputed)
    def accept_recomputed(self, request: ask.AcceptRecomputed, session: Session, holder: Holder) -> replies.Described:
        if session.exactness == "recomputed":
            session.count_as("exact")
        return replies.Described(session=reports.describe(session))


def _swapped(session: Session, before: Transfer | None) -> replies.Swapped:
    if session.residence.error is not None:
        raise session.residence.error
    transfer = session.residence.last_transfer
    return replies.Swapped(session=reports.describe(session), transfer=None if transfer is before else transfer)


TOKENS_TOLD: Final = 12
STOPS_TOLD: Final = 2**16  # of all sessions together, the last ones of each


def _stops(session: Session, first: int, most: int) -> Iterator[StopDescription]:
    """Yield stops of the history from the `first` one on; the present one is edited while an edit is in force."""
    for number, stop in enumerate(session.history.describe()[first : first + most]):
        edited = bool(session.edits_in_force) if stop.index == session.history.present else stop.edited
        yield msgspec.structs.replace(stop, index=number, edited=edited)


class WeightRequests(BuiltOfParts):
    def __init__(self, parts: EngineParts) -> None:
        super().__init__(parts)
        self._weights, self._reader = self._forward.weights, WeightReader(self._forward)

    @handles(ask.ReadWeight)
    def read_weight(self, request: ask.ReadWeight, holder: Holder) -> replies.WeightRead:
        name = parse_weight(request.name)
        with device_memory_for(f"a copy of {name}", "Close sessions, or choose heads or columns of it."):
            part = self._reader.read(name, request.rows, request.columns, fold_norm=request.fold_norm)
            return replies.WeightRead(name=str(name), values=to_array(part))

    @handles(ask.Sleep)
    def sleep(self, request: ask.Sleep, holder: Holder) -> replies.WeightsMoved:
        """Put the weights to sleep. Raises IllegalMove during a pass, UsageError where they could not return."""
        busy = [session.name for session in self._sessions.values() if session.work is not None]
        if busy:
            raise IllegalMove(f"Session {in_quotes(busy[0])} is running and needs the weights; pause it first.")
        seconds = self._weights.sleep()
        return replies.WeightsMoved(weights=self._weights.statistics(), seconds=seconds)

    @handles(ask.Wake)
    def wake(self, request: ask.Wake, holder: Holder) -> replies.WeightsMoved:
        seconds = self._weights.wake()
        return replies.WeightsMoved(weights=self._weights.statistics(), seconds=seconds)

    @handles(ask.ReadCopies)
    def read_copies(self, request: ask.ReadCopies, holder: Holder) -> replies.Copies:
        return replies.Copies(copies=self._weights.copies(request.since))
