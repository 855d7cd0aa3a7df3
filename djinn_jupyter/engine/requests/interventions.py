"""Breakpoints, edits, steering rules and watches: set, turned off and on again, and cleared. All that can be wrong with
one is refused here."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Generator, Mapping
from dataclasses import replace

import msgspec
import torch
from torch import Tensor

from djinn_jupyter.engine.loop.mailbox import Holder
from djinn_jupyter.engine.loop.parts import BuiltOfParts
from djinn_jupyter.engine.model.hooks.taps import Tap
from djinn_jupyter.engine.passes import conditions, edits
from djinn_jupyter.engine.passes.breakpoints import Breakpoint, Rule, Watch, check_rule, unit_of
from djinn_jupyter.engine.passes.conditions import Condition
from djinn_jupyter.engine.passes.frame import Frame
from djinn_jupyter.engine.passes.site_value import Guard
from djinn_jupyter.engine.requests.bounds import require_few_standing
from djinn_jupyter.engine.requests.handlers import handles
from djinn_jupyter.engine.requests.sessions import brought
from djinn_jupyter.engine.session import history, queries, reports
from djinn_jupyter.engine.session.reports import note_of
from djinn_jupyter.engine.session.residence import Blocked, Steps
from djinn_jupyter.engine.session.runtime import Runtime
from djinn_jupyter.engine.session.session import Session
from djinn_jupyter.engine.store.load import recompute
from djinn_jupyter.errors import InvalidCondition, InvalidEdit, UnknownBreakpoint, UnknownRule, UnknownSite, UsageError
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.edits import PatchFrom
from djinn_jupyter.wire.looks import spell_watch
from djinn_jupyter.wire.nouns import StopIdentity
from djinn_jupyter.wire.replies import BreakpointSet, Cleared, Edited, Paused, SessionEdited, Steered, Watching
from djinn_jupyter.wire.sites import Site, parse_every_layer, spell_every_layer
from djinn_jupyter.wire.texts import in_quotes, shown


def made_rule(runtime: Runtime, request: ask.Steer, number: int) -> Rule:
    """Return the rule that the request asks for. Raises InvalidEdit, InvalidCondition and UnknownSite."""
    every = parse_every_layer(request.site)
    if every is None:
        sites: tuple[Site, ...] = (runtime.site(request.site),)
        taps: tuple[Tap, ...] = (runtime.resolve(sites[0]),)
    else:
        sites, taps = _everywhere(runtime, every)
    if isinstance(request.edit, PatchFrom):
        raise InvalidEdit(
            "patch_from takes the value of one stop; a rule holds for many passes. Use set with the array and its "
            "positions, as the client does."
        )
    for site, tap in zip(sites, taps, strict=True):
        check_rule(request.edit, tap, site.selector)
    guard = None if request.when is None else _guard(runtime, request.when, taps, sites[0])
    return Rule(
        number=number,
        named=str(sites[0]) if every is None else spell_every_layer(every),
        sites=sites,
        taps=taps,
        edit=request.edit,
        positions=request.positions,
        onward=request.onward,
        on=request.on,
        guard=guard,
        words=request.words,
        note=None if guard is None else note_of(runtime.tokenizer, sorted(guard.condition.tokens)),
    )


def _everywhere(runtime: Runtime, first: Site) -> tuple[tuple[Site, ...], tuple[Tap, ...]]:
    """Return the site in each layer that has it, and its taps. Raises UnknownSite where none has it."""
    found: list[tuple[Site, Tap]] = []
    missing: UnknownSite | None = None
    for layer in range(runtime.forward.layers):
        site = msgspec.structs.replace(first, layer=layer)
        try:
            found.append((site, runtime.resolve(site)))
        except UnknownSite as error:
            missing = missing or error
    if not found:
        assert missing is not None
        raise missing
    return tuple(site for site, _ in found), tuple(tap for _, tap in found)


def _guard(runtime: Runtime, text: str, taps: tuple[Tap, ...], site: Site) -> Guard:
    condition = checked_condition(runtime, text, taps[0], site)
    condition.require_truth()
    return Guard(condition=condition, text_of=runtime.tokenizer.text_of, id_of=runtime.tokenizer.token_id)


def checked_condition(runtime: Runtime, text: str, tap: Tap, site: Site) -> conditions.Condition:
    """Return the condition in `text`. Raises InvalidCondition where it cannot be evaluated at the site of this tap."""
    condition = conditions.parse(text)
    if condition.needs_lens and (tap.axes != "T D" or tap.width != runtime.forward.anatomy.hidden_size):
        raise InvalidCondition(
            f"top1, p, logit and rank read the residual stream; {tap.site.whole()} has another width. Use resid_post.N."
        )
    if "value" in condition.names and _numbers_at(tap, site) != 1:
        raise InvalidCondition(
            f"value is of one feature, and {site} has more: name one, as in {site.whole()}[0]; norm is of several."
        )
    require_known_tokens(runtime, condition)
    return condition


def _numbers_at(tap: Tap, site: Site) -> int | None:
    """Return the number of values per position at a site; None for maps, whose rows grow."""
    if tap.width is None or tap.heads is not None:
        return None
    return tap.width if site.selector is None else len(site.selector)


def require_known_tokens(runtime: Runtime, condition: conditions.Condition) -> None:
    """Raise InvalidCondition for a token that the model does not have."""
    for number in (*map(runtime.tokenizer.token_id, condition.tokens), *condition.token_ids):
        if not 0 <= number < runtime.description.vocab_size:
            raise InvalidCondition(f"There is no token {number}: there are {runtime.description.vocab_size} ids.")


class InterventionRequests(BuiltOfParts):
    @handles(ask.SetBreakpoint)
    def set_breakpoint(self, request: ask.SetBreakpoint, session: Session, holder: Holder) -> BreakpointSet:
        """Set a breakpoint. The same site and condition twice is one; setting it again enables it."""
        site = self._runtime.site(request.site)
        tap = self._runtime.of(session).resolve(site)
        condition = None if request.when is None else checked_condition(self._runtime, request.when, tap, site)
        if condition is not None:
            condition.require_truth()
        for one in session.breakpoints.values():
            if one.site == site and (one.condition.text if one.condition else None) == request.when:
                one.arm(enabled=True, once=request.once)
                session.set_breakpoint(one)
                return BreakpointSet(breakpoint=one.describe(), existed=True)
        made = self.add(session, site, tap, condition, once=request.once)
        return BreakpointSet(breakpoint=made.describe(), existed=False)

    def add(self, session: Session, site: Site, tap: Tap, condition: Condition | None, *, once: bool) -> Breakpoint:
        """Return a new breakpoint of a session; there is none like it. Raises UsageError where it has too many."""
        require_few_standing("breakpoints", len(session.breakpoints))
        made = Breakpoint(
            number=session.numbers_given + 1,
            site=site,
            tap=tap,
            condition=condition,
            once=once,
            text_of=self._runtime.tokenizer.text_of,
            id_of=self._runtime.tokenizer.token_id,
            note=None if condition is None else note_of(self._runtime.tokenizer, sorted(condition.tokens)),
        )
        session.set_breakpoint(made)
        return made

    @handles(ask.EnableBreakpoint)
    def enable_breakpoint(self, request: ask.EnableBreakpoint, session: Session, holder: Holder) -> BreakpointSet:
        found = session.breakpoints.get(request.number)
        if found is None:
            raise UnknownBreakpoint(f"There is no breakpoint {request.number}; there are {_numbers(session)}.")
        found.arm(enabled=request.enabled, once=found.once)
        session.set_breakpoint(found)
        return BreakpointSet(breakpoint=found.describe(), existed=True)

    @handles(ask.ClearBreakpoints)
    def clear_breakpoints(self, request: ask.ClearBreakpoints, session: Session, holder: Holder) -> Cleared:
        if request.sites is None:
            doomed = set(session.breakpoints)
        else:
            at = defaultdict(list)
            for one in session.breakpoints.values():
                at[one.site].append(one.number)
            doomed = {number for spelling in request.sites for number in self._named(session, at, spelling)}
        session.remove(session.breakpoints, doomed)
        return Cleared(count=len(doomed))

    def _named(self, session: Session, at: Mapping[Site, list[int]], spelling: str) -> list[int]:
        """Return breakpoints by site, with their present sites in `at`, or by number where that number exists
        (otherwise a bare layer number is a site)."""
        if spelling.isdigit() and int(spelling) in session.breakpoints:
            return [int(spelling)]
        site = self._runtime.site(spelling)
        if site not in at:
            raise UnknownBreakpoint(f"There is no breakpoint at {site}; there are {_numbers(session)}.")
        return at[site]

    @handles(ask.ApplyEdit)
    def apply_edit(self, request: ask.ApplyEdit, session: Session, holder: Holder) -> Steps[Edited]:
        frame = queries.stopped_frame(session)
        assert frame.tap is not None and frame.raw is not None
        site = edited_site(self._runtime, session, request.site)
        history.require_editable(frame.tap)
        there = [edit.positions for edit in session.edits]
        require_few_standing("edits", len(there), [*there, request.positions])
        patched: Tensor | None = None
        size = frame.raw.nbytes
        if isinstance(request.edit, PatchFrom):
            patched = yield from self._patch(request.edit, site, _touched(frame, request.positions))
            self._residency.require_given(patched.nbytes)  # the values of the patch become the edit's
            size += patched.nbytes
        yield from self._residency.set_aside(session, size, of_owner_budget=size)
        made = history.make(
            frame,
            request.edit,
            site,
            request.positions,
            number=len(session.edits) + 1,
            patched=patched,
            words=request.words,
        )
        session.set_edits(made.frame, [*session.edits, made.noted])
        words = request.words or edits.spell(request.edit)
        return _edited(_tell_edited(self._runtime, session), site, words, made)

    def _patch(
        self, edit: PatchFrom, site: Site, positions: tuple[int, ...]
    ) -> Generator[Blocked | None, None, Tensor]:
        """Return the value of another session's stopped pass, in the shape of the part to replace."""
        source = self._sessions.find(edit.session)
        if source.work == "run":
            raise InvalidEdit(f"Session {in_quotes(edit.session)} is running; pause it where its value is to be taken.")
        yield from brought(source, self._sessions, self._residency)
        source.residence.hold()
        try:
            return (yield from self._value_there(source, edit, site, positions))
        finally:
            source.residence.let_go()

    def _value_there(
        self, source: Session, edit: PatchFrom, site: Site, positions: tuple[int, ...]
    ) -> Generator[Blocked | None, None, Tensor]:
        frame = queries.stopped_frame(source)
        while source.needs_recompute:
            if source.work is None:
                yield from recompute(self._runtime.of(source), source)
            else:
                yield None
        runtime = self._runtime.of(source)
        there = runtime.site(edit.site) if edit.site is not None else site
        tap = runtime.resolve(there)
        seen = yield from queries.value_at(runtime, source, tap, ahead=False)
        value = tap.read(seen.raw)
        available = frame.positions[len(frame.positions) - value.shape[0] :]
        wanted = edit.positions if edit.positions is not None else positions
        selector = there.selector if there.selector is not None else site.selector
        return edits.take(value, edits.rows_of(wanted, available), selector)

    @handles(ask.RevertEdits)
    def revert_edits(self, request: ask.RevertEdits, session: Session, holder: Holder) -> Paused:
        """Restore the stopped value as the pass computed it."""
        queries.stopped_frame(session)
        stop = session.history.here
        assert stop is not None
        session.set_edits(stop.frame, [])
        _tell_edited(self._runtime, session)
        return reports.paused(self._runtime, session)

    @handles(ask.EnableEdit)
    def enable_edit(self, request: ask.EnableEdit, session: Session, holder: Holder) -> Paused:
        """Apply the edits of the stop again, to the value that the pass computed."""
        standing = queries.stopped_frame(session)
        stop = session.history.here
        assert stop is not None and standing.raw is not None
        if not 1 <= request.number <= len(session.edits):
            there = ", ".join(f"{edit.number}: {edit.what}" for edit in session.edits) or "none"
            raise InvalidEdit(f"This stop has no edit {request.number}; there are {there}.")
        wanted = [replace(e, enabled=request.enabled) if e.number == request.number else e for e in session.edits]
        self._residency.set_aside_now(standing.raw.nbytes)
        session.set_edits(*history.with_edits(stop.frame, wanted))
        self._residency.accounted(session)
        _tell_edited(self._runtime, session)
        return reports.paused(self._runtime, session)

    @handles(ask.Steer)
    def steer(self, request: ask.Steer, session: Session, holder: Holder) -> Steered:
        """Set a rule. The same rule twice is one; setting it again turns it on."""
        made = made_rule(self._runtime.of(session), request, session.rule_numbers_given + 1)
        for rule in session.rules.values():
            if rule.says(made):
                rule.enable(True)
                session.steer(rule)
                return Steered(rule=rule.describe(), existed=True)
        there = [rule.positions for rule in session.rules.values()]
        require_few_standing("steering rules", len(there), [*there, made.positions])
        session.steer(made)
        return Steered(rule=made.describe(), existed=False)

    @handles(ask.EnableRule)
    def enable_rule(self, request: ask.EnableRule, session: Session, holder: Holder) -> Steered:
        rule = _rule_of(session, request.number)
        rule.enable(request.enabled)
        session.steer(rule)
        return Steered(rule=rule.describe(), existed=True)

    @handles(ask.Unsteer)
    def unsteer(self, request: ask.Unsteer, session: Session, holder: Holder) -> Cleared:
        doomed = list(session.rules) if request.number is None else [_rule_of(session, request.number).number]
        session.remove(session.rules, doomed)
        return Cleared(count=len(doomed))

    @handles(ask.Watch)
    def watch(self, request: ask.Watch, session: Session, holder: Holder) -> Watching:
        site = self._runtime.site(request.site)
        tap = self._runtime.of(session).resolve(site)
        made = _watch(request, site, tap, session)
        if made.key not in session.watches:
            require_few_standing("watches", len(session.watches))
        made.limit(request.byte_cap)
        if request.fresh:
            made.clear()
        session.watch(made)
        return Watching(watch=made.describe())

    @handles(ask.Unwatch)
    def unwatch(self, request: ask.Unwatch, session: Session, holder: Holder) -> Cleared:
        if request.site is None:
            doomed = list(session.watches)
        else:
            doomed = [watch_of(session, self._runtime.site(request.site), request.direction).key]
        session.remove(session.watches, doomed)
        return Cleared(count=len(doomed))


def _watch(request: ask.Watch, site: Site, tap: Tap, session: Session) -> Watch:
    """Return the session's watch of this, or a new one. A name means one direction, until `fresh`."""
    name = None if request.direction is None else request.direction.name
    unit = None if request.direction is None else unit_of(request.direction.vector, site, tap)
    there = session.watches.get(spell_watch(str(site), name))
    if there is not None and _same(unit, there.unit):
        return there
    if there is not None and not request.fresh:
        raise UsageError(
            f"{there.key} records another direction of that name; --fresh (in Python fresh=True) forgets what it "
            "recorded and begins with this one."
        )
    return Watch(site=site, tap=tap, byte_cap=request.byte_cap, direction=name, unit=unit, run=session.runs)


def _same(one: Tensor | None, other: Tensor | None) -> bool:
    return one is other is None or (one is not None and other is not None and torch.equal(one, other))


def watch_of(session: Session, site: Site, direction: str | None) -> Watch:
    """Return the watch of a site, or of its component along a direction. Raises UnknownSite."""
    key = spell_watch(str(site), direction)
    if key not in session.watches:
        raise UnknownSite(f"{shown(key)} is not watched; watched here: {', '.join(session.watches) or 'nothing'}.")
    return session.watches[key]


def _numbers(session: Session) -> str:
    return ", ".join(f"{b.number} at {b.site}" for b in session.breakpoints.values()) or "none"


def _touched(frame: Frame, positions: tuple[int, ...] | None) -> tuple[int, ...]:
    """Return the absolute positions that an edit of the stopped value touches."""
    assert frame.tap is not None and frame.raw is not None
    available = history.available_in(frame, frame.tap.read(frame.raw))
    rows = edits.rows_of(positions, available)
    return tuple(available if rows is None else (available[row] for row in rows))


def _tell_edited(runtime: Runtime, session: Session) -> StopIdentity:
    """Notify clients that the stop's value has changed; return the session's present stop."""
    stop = reports.stop_identity(session)
    runtime.publish(SessionEdited(session=session.name, stop=stop))
    return stop


def edited_site(runtime: Runtime, session: Session, spelling: str | None) -> Site:
    """Return the site to edit: the stop's, with the given selector or the breakpoint's."""
    here = reports.site_of(session)
    if spelling is None:
        return here
    site = runtime.site(spelling)
    if site.whole() != here.whole():
        raise InvalidEdit(
            f"The pass is stopped at {here.whole()}, so only that value can be edited; "
            f"set a breakpoint at {site} to edit there, or a steering rule."
        )
    return site


def _edited(stop: StopIdentity, site: Site, spelling: str, made: history.Made) -> Edited:
    x, y = made.before.to(torch.float32), made.after.to(torch.float32)
    norm = float(x.norm())
    return Edited(
        stop=stop,
        site=str(site),
        edit=spelling,
        shape=tuple(made.before.shape),
        positions=made.positions,
        norm_before=norm,
        norm_after=float(y.norm()),
        relative_size=float((y - x).norm()) / norm if norm > 0 else None,
        entries_changed=int((made.before != made.after).sum()),
    )


def _rule_of(session: Session, number: int) -> Rule:
    """Return the rule of that number. Raises UnknownRule."""
    if number not in session.rules:
        rules = ", ".join(f"{r.number} at {r.named}" for r in session.rules.values()) or "none"
        raise UnknownRule(f"There is no steering rule {number}; there are {rules}.")
    return session.rules[number]
