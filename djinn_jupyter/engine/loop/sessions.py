"""Open, describe, detach, close and fork sessions."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from djinn_jupyter.engine.loop.dispatch import handles
from djinn_jupyter.engine.loop.lifecycle import SessionLifecycle
from djinn_jupyter.engine.loop.mailbox import Holder
from djinn_jupyter.engine.passes.steering import Rule
from djinn_jupyter.engine.residency.residency import Residency
from djinn_jupyter.engine.session import reports
from djinn_jupyter.engine.session.generation import GenerationCopies
from djinn_jupyter.engine.session.history import History
from djinn_jupyter.engine.session.queries import edit_cached
from djinn_jupyter.engine.session.residence import Pieces
from djinn_jupyter.engine.session.runtime import Runtime
from djinn_jupyter.engine.session.session import Session
from djinn_jupyter.engine.session.table import SessionTable, whose
from djinn_jupyter.engine.store.persistence import Persistence
from djinn_jupyter.errors import IllegalMove, SessionHeld, UnknownSession, UsageError
from djinn_jupyter.settings import SettledOptions
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.edits import Edit, dosed
from djinn_jupyter.wire.nouns import Origin
from djinn_jupyter.wire.replies import Closed, Described, Detached, Opened
from djinn_jupyter.wire.texts import NOTEBOOK, in_quotes, label, require_showable, told_apart


class SessionRequests:
    def __init__(
        self,
        sessions: SessionTable,
        life: SessionLifecycle,
        runtime: Runtime,
        residency: Residency,
        options: SettledOptions,
        persistence: Persistence,
    ) -> None:
        self._sessions, self._life, self._runtime = sessions, life, runtime
        self._residency, self._options, self._persistence = residency, options, persistence

    @handles(ask.Open)
    def open_(self, request: ask.Open, holder: Holder) -> Opened:
        session = self._sessions.get(request.session)
        if session is None:
            require_name(request.session, self._sessions)
            session = self._empty(
                request.session, holder.user, holder.name, holder.notebook, temporary=request.temporary
            )
            described = reports.describe(self._life.begin(session))
            return Opened(session=described, created=True, note=self._left_out(request.session))
        held = session.holder not in (None, holder.name) and not self._residency.holder_has_gone(session)
        if held and not (request.join or (request.fresh and request.force)):
            shown = told_apart(self._sessions)[session.name]
            raise SessionHeld(
                f"Session {in_quotes(shown)} {whose(session)}; to enter it all the same, add --join "
                f"(%djinn_use {shown} --join, or %djinn_load; in Python join=True), or use another name."
            )
        if request.fresh:
            session = self._forget(session)
        if not held:
            session.attach(holder.name, holder.notebook)
        return Opened(session=reports.describe(session), created=False)

    def _left_out(self, session: str) -> str | None:
        why = self._persistence.left_out(session)
        return why and (
            f"What an earlier engine kept of session {in_quotes(label(session))} is set aside, so it begins empty: "
            f"{why} It comes back with an engine that it fits; the log (%djinn_log, `djinn log`) names the file."
        )

    def _empty(self, name: str, owner: str, holder: str | None, notebook: str | None, *, temporary: bool) -> Session:
        return Session(
            name=name,
            owner=owner,
            holder=holder,
            holder_notebook=notebook,
            temporary=temporary,
            cache=self._runtime.space.new_cache(),
            history=History(kept=self._options.stops_kept),
        )

    def _forget(self, session: Session) -> Session:
        """Replace a session by a new one of the same name, and return that; refused while it runs."""
        if session.state == "running":
            raise IllegalMove(f"Session {in_quotes(session.name)} is running; pause it before it is made fresh.")
        fresh = self._empty(
            session.name, session.owner, session.holder, session.holder_notebook, temporary=session.temporary
        )
        fresh.shares.take_over(session.shares.by_person)
        fresh.answered.take_over(iter(session.answered), session.answered.let_go)
        self._life.end(session)
        return self._life.begin(fresh)

    @handles(ask.Describe)
    def describe(self, request: ask.Describe, session: Session, holder: Holder) -> Described:
        return Described(session=reports.describe(session))

    @handles(ask.SetAttention)
    def set_attention(self, request: ask.SetAttention, session: Session, holder: Holder) -> Described:
        """Choose how a session that holds nothing yet computes attention; its points are those of that attention."""
        session, own = session, self._runtime.forward.attention
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
            self._runtime.forward.attending(request.attention)
            session.compute_with(None if request.attention == own else request.attention, session.adapter)
        return Described(session=reports.describe(session))

    @handles(ask.Detach)
    def detach(self, request: ask.Detach, session: Session, holder: Holder) -> Detached:
        if session.holder == holder.name:
            session.detach()
        return Detached()

    @handles(ask.Close)
    def close(self, request: ask.Close, session: Session, holder: Holder) -> Closed:
        return Closed(pages_freed=self._life.close(session))

    @handles(ask.Fork)
    def fork(self, request: ask.Fork, session: Session, holder: Holder) -> Opened:
        parent = session
        require_showable(request.name, "The name of a session")
        _require_free(request.name, self._sessions)
        if request.seed is not None:
            _require_draws(parent)
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
            texts=list(parent.texts),
            saved_states=dict(parent.saved_states),
            pass_log=parent.pass_log.copy(),
            exactness=parent.exactness,
            frame=parent.frame,
            edits=list(parent.edits),
            generation=None if parent.generation is None else generations(parent.generation),
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
        if request.seed is not None and child.generation is not None:
            child.history.draw_with(child.generation.reseed(request.seed))
        if request.edit is not None:
            self._edit_cached(parent, child, request, request.edit)
        self._life.begin(child)
        self._residency.accounted(child)
        return Opened(session=reports.describe(child), created=True)

    def _edit_cached(self, parent: Session, child: Session, request: ask.Fork, edit: Edit) -> None:
        """Edit committed keys or values of a fork that is not there yet; it begins at this place."""
        try:
            if request.site is None:
                raise UsageError("An edit of committed keys or values needs their site, such as k_rot.5[0] or v.5.")
            site = self._runtime.site(request.site)
            edit_cached(self._runtime.of(child), child, edit, site, request.positions, request.words)
        except BaseException:
            child.cache.free()
            raise
        child.history.keep_present(f"Those are stops of {in_quotes(label(parent.name))}, before the edit of this fork.")


def _require_draws(parent: Session) -> None:
    """Raise UsageError for a session whose run a seed could not change."""
    name = in_quotes(parent.name)
    if parent.generation is None:
        raise UsageError(f"Session {name} has run nothing that could go on with a seed; run a prompt first.")
    if not parent.generation.sampler.draws:
        raise UsageError(
            f"The run of session {name} takes the most probable token each time, so that all samples of it are equal; "
            "run the prompt with a temperature to draw some."
        )


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
    """Raise UsageError where a session has that name, or is shown by it: a label must mean one session."""
    there = name if name in names else next((one for one in names if label(one) == label(name)), None)
    if there is not None:
        full = "" if there == name else f" (in full {there})"
        raise UsageError(f"There is a session {in_quotes(label(name))} already{full}; choose another name or close it.")


def _origin(parent: Session) -> Origin:
    stops = parent.history.stops
    last = parent.history.here or (stops[-1] if stops else None)
    return Origin(session=parent.name, stop=None if last is None else last.number, tokens=len(parent.tokens))


# Another session that a request reads beside its own.


def brought(session: Session, sessions: SessionTable, residency: Residency) -> Pieces:
    """Yield steps until the session's bytes are on the device. Raises the error that prevents it."""
    if not session.residence.present:
        residency.need(session)
        yield from residency.settled(session)
    if sessions.get(session.name) is not session or not session.residence.present:
        raise session.residence.error or UnknownSession(f"Session {in_quotes(session.name)} was closed meanwhile.")
