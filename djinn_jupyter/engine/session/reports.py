"""Sessions, stops and finished runs as wire types, with all that makes a stop differ from the model alone. Reads
only."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import msgspec
import torch
from torch import Tensor

from djinn_jupyter.engine.model.loading.tokenizer import TokenText
from djinn_jupyter.engine.passes import site_value
from djinn_jupyter.engine.passes.breakpoints import Rule
from djinn_jupyter.engine.passes.edits import Change
from djinn_jupyter.engine.passes.frame import Frame, Override
from djinn_jupyter.engine.passes.site_value import SiteValue
from djinn_jupyter.engine.session.generation import Generation
from djinn_jupyter.engine.session.history import Passes
from djinn_jupyter.engine.session.queries import may_be_reached
from djinn_jupyter.engine.session.runtime import Runtime
from djinn_jupyter.engine.session.session import Session
from djinn_jupyter.engine.session.table import Footprint
from djinn_jupyter.engine.system.arrays import dtype_name
from djinn_jupyter.wire import readings
from djinn_jupyter.wire.nouns import FinishReason, LensRow, SessionDescription, StopIdentity, TopToken
from djinn_jupyter.wire.readings import Applies, EarlierPasses, EffectReading, Influences, RuleAtStop, TokenShift
from djinn_jupyter.wire.replies import Finished, Paused
from djinn_jupyter.wire.sites import Site

CHANGES_TOLD: Final = 4096  # of earlier passes; more are counted


def influences(session: Session, frame: Frame) -> Influences:
    """Return all influences on the stopped pass of `frame`."""
    return Influences(
        rules=tuple(_rule(rule, frame) for rule in session.rules.values()),
        edits=tuple(edit.describe() for edit in session.edits),
        overrides=tuple(_override(override) for override in frame.overrides),
        earlier=tuple(_earlier(session)),
        adapter=None if session.adapter is None else session.adapter.name,
    )


def has_edits(session: Session) -> bool:
    """Return whether a session's values include edits: of its stop, of earlier stops, and of its cache."""
    made_by = [passes.entry for passes in session.pass_log.passes] + [session.frame]
    overrides = (override for frame in made_by if frame is not None for override in frame.overrides)
    return bool(session.edits_in_force or session.pass_log.edited) or any(map(_is_edit, overrides))


def _is_edit(override: Override) -> bool:
    """Return whether an edit made an override: rules have their own numbers."""
    return any(change.rule is None for change in override.changes) or not override.changes


def _override(override: Override) -> readings.Override:
    changes = (readings.Change(what=c.what, rule=c.rule, relative_size=_finite(c)) for c in override.changes)
    return readings.Override(site=str(override.tap.site), changes=tuple(changes))


def _finite(change: Change) -> float | None:
    size = float(change.size)
    return size if math.isfinite(size) else None


def _rule(rule: Rule, frame: Frame) -> RuleAtStop:
    made = next((c for override in frame.overrides for c in override.changes if c.rule == rule.number), None)
    return RuleAtStop(
        number=rule.number,
        site=rule.named,
        what=rule.what,
        applies="applied" if made is not None else _why_not(rule, frame),
        relative_size=None if made is None else _finite(made),
        enabled=rule.enabled,
        trouble=rule.trouble if rule.refused_at == frame.committed else None,
    )


def _why_not(rule: Rule, frame: Frame) -> Applies:
    """Return why a rule has no effect in the stopped pass."""
    if not rule.enabled:
        return "off"
    if not rule.takes(frame.step):
        return "other passes"
    if rule.rows_in(frame.positions) == []:
        return "other positions"
    if not may_be_reached(rule.taps[0], frame):
        return "ahead"
    if rule.refused_at == frame.committed:
        return "refused"
    if rule.guard is not None and rule.met_at == frame.committed:
        return "condition"
    stage = None if frame.tap is None else frame.tap.stage
    inside = any(tap.boundary is None and tap.stage == stage for tap in rule.taps)
    return "not so far" if inside and frame.inside else "next pass"


def _earlier(session: Session) -> Iterator[EarlierPasses]:
    """Yield the committed passes that rules or overrides changed, oldest first, then edits of committed rows; of too
    many, the oldest together as a count."""
    found: list[EarlierPasses] = []
    for passes in session.pass_log.passes:
        changes = _changes(passes)
        if changes:
            found.append(EarlierPasses(start=passes.start, end=passes.end, changes=changes))
    for edit in session.pass_log.edited:
        found.append(EarlierPasses(start=min(edit.positions), end=max(edit.positions) + 1, changes=(edit.what,)))
    told = len(found)
    left = CHANGES_TOLD
    while told and left >= len(found[told - 1].changes):
        left -= len(found[told - 1].changes)
        told -= 1
    if told:
        yield _in_sum(found[:told])
    yield from found[told:]


def _in_sum(passes: Sequence[EarlierPasses]) -> EarlierPasses:
    count = sum(len(one.changes) for one in passes)
    start, end = min(one.start for one in passes), max(one.end for one in passes)
    return EarlierPasses(start=start, end=end, changes=(f"{count:,} changes that are not told one by one",))


def _changes(passes: Passes) -> tuple[str, ...]:
    """Return the rules and the other overrides that affected a position, each once."""
    held = [rule for rule in passes.rules if _touches(rule, passes)]
    numbers = {rule.number for rule in held}
    found = [f"rule {rule.number}: {rule.what}" for rule in held]
    for override in passes.entry.overrides if passes.entry is not None else ():
        found += [_spell(c) for c in override.changes if c.rule not in numbers]
        found += [] if override.changes else [f"a value put in place at {override.tap.site}"]
    return tuple(dict.fromkeys(found))


def _touches(rule: Rule, passes: Passes) -> bool:
    return rule.takes(int(passes.decode)) and any(
        rule.rows_in(range(start, min(start + passes.each, passes.end))) != []
        for start in range(passes.start, passes.end, passes.each)
    )


def _spell(change: Change) -> str:
    return change.what if change.rule is None else f"rule {change.rule}, since ended: {change.what}"


TOP = 10


def stop_identity(session: Session) -> StopIdentity:
    """Return the stop that belongs to a value read now."""
    stop = session.stop_identity
    assert stop is not None
    return stop


def site_of(session: Session) -> Site:
    """Return the site of a session's stop, in its spelling."""
    stop = session.history.here
    assert stop is not None
    return stop.site


def describe(session: Session) -> SessionDescription:
    stop = session.history.here if session.state == "paused" else None
    pages = session.cache.statistics()
    table = session.storage_table
    own = Footprint() if table is None else Footprint.count(session, table)
    return SessionDescription(
        name=session.name,
        owner=session.owner,
        holder=session.holder,
        notebook=session.notebook,
        state=session.state,
        tokens=len(session.tokens),
        committed=session.committed,
        stopped_at=None if stop is None else str(stop.site),
        step=None if stop is None else stop.frame.step,
        breakpoints=tuple(b.describe() for b in session.breakpoints.values()),
        rules=tuple(r.describe() for r in session.rules.values()),
        watches=tuple(w.describe() for w in session.watches.values()),
        stops_kept=len(session.history.stops),
        stop=session.stop_identity,
        pages=pages.pages,
        device_bytes=own.device + pages.working_bytes,
        exactness=session.exactness,
        idle_seconds=time.monotonic() - session.last_used,
        residency=session.residence.state,
        host_bytes=own.host,
        disk_bytes=own.disk,
        dirty_bytes=own.dirty,
        last_transfer=session.residence.last_transfer,
        in_use=session.holder is not None and session.used_by == session.holder,
        attention=session.attention,
        adapter=None if session.adapter is None else session.adapter.name,
        progress=session.progress.now,
        shares=session.shares.describe(),
    )


def paused(runtime: Runtime, session: Session) -> Paused:
    """Return the report of a paused session's present stop."""
    stop, frame = session.history.here, session.frame
    assert stop is not None and frame is not None and frame.tap is not None and session.generation is not None
    assert session.history.present is not None
    seen, site = _seen_at(frame), stop.site
    part = seen.units(site.selector)
    prompt_text, new_text = runtime.tokenizer.parted(session.tokens, session.generation.begins)
    met = stop.breakpoint
    return Paused(
        session=session.name,
        stop=stop_identity(session),
        site=str(site),
        reason=stop.reason,
        breakpoint=met,
        also=stop.also,
        matched=stop.matched,
        step=frame.step,
        layer=frame.boundary,
        layers=runtime.forward.layers,
        positions=tuple(seen.row_positions()),
        tokens=tuple(session.tokens),
        texts=tuple(map(runtime.tokenizer.text_of, session.tokens)),
        prompt_tokens=session.generation.begins,
        prompt_text=prompt_text,
        new_text=new_text,
        log_probabilities=_log_probabilities(session),
        shape=tuple(part.shape),
        axes=frame.tap.axes,
        dtype=dtype_name(part.dtype),
        norms=tuple(site_value.norms(seen, site)),
        values=tuple(site_value.values(seen, site)) if part.numel() == len(part) else None,
        edits=session.edits_in_force,
        history_index=session.history.present,
        history_length=len(session.history.stops),
        layers_run=session.generation.layers_run,
        influences=influences(session, frame),
    )


def _seen_at(frame: Frame) -> SiteValue:
    """Return the value at a stop as conditions read it, so that a report has the numbers that they compare."""
    assert frame.tap is not None and frame.raw is not None
    return SiteValue(
        tap=frame.tap, raw=frame.raw, tokens=frame.tokens, positions=frame.positions, step=frame.step, lens=None
    )


def finished(runtime: Runtime, session: Session, reason: FinishReason, detail: str | None) -> Finished:
    generation = session.generation
    assert generation is not None
    texts = tuple(map(runtime.tokenizer.text_of, session.tokens))
    new = generation.new_tokens(session.tokens)
    shown = session.tokens[:-1] if reason == "eos" else session.tokens
    prompt_text, text = runtime.tokenizer.parted(shown, generation.begins)
    return Finished(
        session=session.name,
        stop=stop_identity(session),
        reason=reason,
        detail=detail,
        tokens=tuple(new),
        texts=texts[generation.begins :],
        text=text,
        prompt_tokens=tuple(session.tokens[: generation.begins]),
        prompt_texts=texts[: generation.begins],
        prompt_text=prompt_text,
        log_probabilities=_log_probabilities(session),
        top=_top(runtime, session),
        rules=tuple(rule.describe() for rule in session.rules.values()),
        ignored_defaults=generation.ignored_defaults,
        layers_run=generation.layers_run,
        passes=generation.passes,
        shared=generation.shared,
        largest_difference=generation.difference,
        note=" ".join(filter(None, _notes(runtime, session, generation))) or None,
    )


def _top(runtime: Runtime, session: Session) -> tuple[TopToken, ...]:
    """Return the likely next tokens; none where the logits have left the device with a session that waits."""
    if session.logits_1V is None or not session.residence.present:
        return ()
    return top_tokens(runtime, session.logits_1V[0], TOP)


def _notes(runtime: Runtime, session: Session, generation: Generation) -> Iterator[str | None]:
    """Yield the notes on a run, with None for absent ones."""
    if not generation.extends:
        yield runtime.tokenizer.begun_twice(session.tokens)
        yield runtime.tokenizer.closed(session.tokens[: generation.begins])
    yield _alone(runtime, session, generation)


def _alone(runtime: Runtime, session: Session, generation: Generation) -> str | None:
    """Return why passes of a fast run were not shared, if because of its attention or its family."""
    if generation.mode != "fast":
        return None
    if not session.as_loaded:
        return f"Each pass was computed alone, for {session.why_alone} are not shared here."
    sharing = runtime.sharing
    if sharing.why_no_more is not None:
        before = ". Those computed with others before may be wrong" if generation.shared else ""
        return f"Passes are computed alone, for {sharing.why_no_more}{before}."
    fed_new = session.committed > generation.begins
    if sharing.why_not is not None and (fed_new or sharing.prompts.why_not is not None):
        passes = "Passes over new tokens were" if sharing.prompts.why_not is None else "Each pass was"
        return f"{passes} computed alone, for this family's lines cannot share one: {sharing.why_not}."
    return None if sharing.prompts.why_not is None else f"Prompts were computed alone, for {sharing.prompts.why_not}."


def _log_probabilities(session: Session) -> tuple[float | None, ...]:
    assert session.generation is not None
    return tuple(session.generation.probabilities_of(len(session.generation.new_tokens(session.tokens))))


def top_tokens(runtime: Runtime, logits_V: Tensor, count: int) -> tuple[TopToken, ...]:
    """Return the `count` most likely tokens under the softmax of fp32 logits."""
    logits_V = logits_V.to(torch.float32)
    most_likely = torch.topk(logits_V, min(count, logits_V.shape[-1])).indices
    return token_readings(runtime, logits_V, most_likely)


def token_readings(runtime: Runtime, logits_V: Tensor, ids: Tensor) -> tuple[TopToken, ...]:
    """Return the tokens `ids` with their probabilities under the softmax of fp32 logits."""
    logits_V = logits_V.to(torch.float32)
    probabilities_V = torch.softmax(logits_V, dim=-1)
    rows = zip(ids.tolist(), probabilities_V[ids].tolist(), logits_V[ids].tolist(), strict=True)
    return tuple(TopToken(token=t, text=runtime.tokenizer.text_of(t), probability=p, logit=x) for t, p, x in rows)


def lens_rows(
    runtime: Runtime, logits_TV: Tensor, positions: list[int], tokens: list[int], count: int, chosen: Sequence[int]
) -> list[LensRow]:
    ids = torch.tensor(chosen, dtype=torch.long, device=logits_TV.device)
    return [
        LensRow(
            position=p,
            token=t,
            text=runtime.tokenizer.text_of(t),
            top=top_tokens(runtime, logits_V, count),
            chosen=token_readings(runtime, logits_V, ids),
        )
        for p, t, logits_V in zip(positions, tokens, logits_TV, strict=True)
    ]


def unread(row: LensRow) -> LensRow:
    """Return the row of features that are off: they write nothing, so there is nothing to read."""
    return msgspec.structs.replace(row, top=(), chosen=())


def effect(
    runtime: Runtime, before_V: Tensor, after_V: Tensor, count: int, chosen: Sequence[int] = ()
) -> EffectReading:
    """Return the effect of the edits on the next token; `chosen` are read besides the `count` most probable."""
    before, after = before_V.to(torch.float32), after_V.to(torch.float32)
    log_before, log_after = torch.log_softmax(before, -1), torch.log_softmax(after, -1)
    kl = (log_after.exp() * (log_after - log_before)).sum()
    tops = (top_tokens(runtime, before, count), top_tokens(runtime, after, count))
    return EffectReading(
        before=tops[0],
        after=tops[1],
        kl=max(0.0, float(kl)),
        top1_changed=bool(before.argmax() != after.argmax()),
        logit_difference_norm=float((after - before).norm()),
        shifts=token_shifts(runtime, before, after, [t.token for t in (*tops[1], *tops[0])]),
        chosen=token_shifts(runtime, before, after, chosen),
    )


def token_shifts(runtime: Runtime, before_V: Tensor, after_V: Tensor, tokens: Sequence[int]) -> tuple[TokenShift, ...]:
    """Return each of these tokens once, under both distributions."""
    ids = torch.tensor(list(dict.fromkeys(tokens)), dtype=torch.long, device=before_V.device)
    without, with_it = (token_readings(runtime, logits_V, ids) for logits_V in (before_V, after_V))
    return tuple(
        TokenShift(
            token=old.token,
            text=old.text,
            probability_before=old.probability,
            probability_after=new.probability,
            logit_before=old.logit,
            logit_after=new.logit,
        )
        for old, new in zip(without, with_it, strict=True)
    )


# Notes on tokens named without their leading space, where the text with one is another token. The engine cannot know
# which was meant and reports both; it does not change the request.

CLEARLY = 10.0  # times as probable


def note_of(texts: TokenText, names: Iterable[str]) -> str | None:
    """Return a sentence about the first of these tokens that is more frequent with a space before it, if any."""
    for name in names:
        token, spaced = texts.token_id(name), texts.spaced(name)
        if spaced is not None and spaced < token:  # byte-pair vocabularies are ordered by frequency
            return f"{name!r} is the token without a space before it; within a text the word is mostly {' ' + name!r}."
    return None


class LeadingSpaces:
    """Checks rows of the lens for tokens that were requested by text."""

    def __init__(self, texts: TokenText, asked: Iterable[int | str]) -> None:
        names = [name for name in asked if isinstance(name, str)]
        pairs = [(name, texts.token_id(name), texts.spaced(name)) for name in names]
        self._pairs = [(name, token, spaced) for name, token, spaced in pairs if spaced is not None]
        self._told: dict[str, str] = {}

    def see(self, logits_TV: Tensor, positions: list[int]) -> None:
        """Record tokens whose form with a space is more than CLEARLY times as probable at the last position."""
        if not self._pairs or not positions:
            return
        chances_V = torch.softmax(logits_TV[-1].to(torch.float32), dim=-1)
        for name, token, spaced in self._pairs:
            plain, other = float(chances_V[token]), float(chances_V[spaced])
            if other > CLEARLY * plain:
                self._told[name] = (
                    f"{name!r} is the token without a space before it, with a probability of {plain:.2g} at position "
                    f"{positions[-1]}; {' ' + name!r} has {other:.2g}."
                )
            else:
                self._told.pop(name, None)

    @property
    def notes(self) -> tuple[str, ...]:
        return tuple(self._told.values())
