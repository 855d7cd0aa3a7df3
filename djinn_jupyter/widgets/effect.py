"""The effect of an edit: the numbers of the edit itself, and the next token's distribution without and with it."""

from __future__ import annotations

from collections.abc import Sequence

from djinn_jupyter.widgets.influences import influence_lines, influence_parts
from djinn_jupyter.widgets.markup import Html, div, joined, table
from djinn_jupyter.widgets.spelling import (
    at_positions,
    columns,
    figure,
    logit,
    marked,
    nats,
    percent,
    plural,
    quoted,
    shape,
    share,
)
from djinn_jupyter.widgets.theme import card, facts, meter, mono, part
from djinn_jupyter.widgets.tokens import cell_token, guesses_plain
from djinn_jupyter.widgets.view import View
from djinn_jupyter.wire.names import label
from djinn_jupyter.wire.nouns import TopToken
from djinn_jupyter.wire.readings import EffectReading, TokenShift
from djinn_jupyter.wire.replies import Edited, Paused


def edit_view(edited: Edited, stop: Paused, effect: EffectReading | None = None) -> View:
    """Show the reply to an edit; `stop` is the stop after the edit. The title says if the edit changed nothing."""
    title = "Edited" if edited.entries_changed else "Nothing changed"
    others = stop.edits[:-1]
    rows: list[tuple[str, object]] = [
        ("edit", mono(edited.edit)),
        ("touched", f"{shape(edited.shape)} at {at_positions(edited.positions)}"),
        ("changed", plural(edited.entries_changed, "entry", "entries")),
        ("norm", f"{figure(edited.norm_before)} before, {figure(edited.norm_after)} after"),
        ("relative size", _relative(edited)),
    ]
    html = card(
        facts(rows),
        effect_part(effect, edited=True) if effect is not None else None,
        *influence_parts(stop.influences, others, but=stop.edits),
        title=joined([f"{title} at ", mono(edited.site)]),
        beside=at_positions(edited.positions),
        session=stop.session,
    )
    plain = (
        f"{title.lower()} at {edited.site}: {edited.edit}, {shape(edited.shape)} at {at_positions(edited.positions)}; "
        f"{plural(edited.entries_changed, 'entry', 'entries')} changed, norm {figure(edited.norm_before)} to "
        f"{figure(edited.norm_after)}, relative size {_relative(edited)} (session {label(stop.session)})"
    )
    lines = influence_lines(stop.influences, others, but=stop.edits)
    return View(plain="\n".join([plain, *effect_lines(effect, edited=True), *lines]), html=html)


def _relative(edited: Edited) -> str:
    return "undefined (the value was zero)" if edited.relative_size is None else figure(edited.relative_size)


def effect_lines(effect: EffectReading | None, *, edited: bool) -> list[str]:
    """Return the effect in plain text; for an unedited stop only the most probable next tokens."""
    if effect is None:
        return []
    if not edited:
        return [f"next token: {guesses_plain(effect.before, len(effect.before))}", *_chosen_lines(effect, ())]
    lines = [f"{_verdict(effect)}, KL {nats(effect.kl)}", columns([_spelled(s) for s in effect.shifts], list(HEAD))]
    return [*lines, *_chosen_lines(effect, effect.shifts)]


def _chosen_lines(effect: EffectReading, shown: Sequence[TokenShift]) -> list[str]:
    """Return the requested tokens not yet `shown`, and the logit difference of the first two requested."""
    rows = [_spelled(shift) for shift in effect.chosen if shift not in shown]
    lines = [columns(rows, list(HEAD))] if rows else []
    return lines + [f"{name}: {before} without, {after} with, {moved}" for name, before, after, moved in _apart(effect)]


HEAD = ("token", "without", "with", "logit without", "logit with", "change")


def _spelled(shift: TokenShift) -> list[str]:
    chances = (percent(shift.probability_before), percent(shift.probability_after))
    return [quoted(shift.text, shift.token), *chances, *_logits(shift.logit_before, shift.logit_after)]


def _logits(before: float, after: float) -> tuple[str, str, str]:
    return logit(before), logit(after), logit(after - before, signed=True)


def _apart(effect: EffectReading) -> list[tuple[str, str, str, str]]:
    """Return the logit difference of the first two requested tokens, the usual metric of circuit analysis."""
    if len(effect.chosen) < 2:
        return []
    a, b = effect.chosen[:2]
    name = f"logit difference {marked(a.text, a.token)} \u2212 {marked(b.text, b.token)}"
    return [(name, *_logits(a.logit_before - b.logit_before, a.logit_after - b.logit_after))]


def effect_part(effect: EffectReading, *, edited: bool) -> Html:
    """Draw the effect as a section of a card: two distributions side by side, and the change of each logit."""
    asked = [shift for shift in effect.chosen if shift not in effect.shifts]
    if not edited:
        rows = [[cell_token(s.text, s.token), percent(s.probability_before), logit(s.logit_before)] for s in asked]
        listed = table(["token", "probability", "logit"], rows, numeric=(1, 2)) if rows else None
        apart = (div("", f"{name}: {before}") for name, before, _, _ in _apart(effect))
        return part(top_table(effect.before), listed, *apart, name="next token, if resumed as it is")
    head = ["token", "without the edit", "", "with it", "", "logits", "", "change"]
    made = [_shifted(shift) for shift in (*effect.shifts, *asked)]
    made += [[name, "", "", "", "", before, after, moved] for name, before, after, moved in _apart(effect)]
    sentence = div("dj-soft", f"{_verdict(effect)}; KL {nats(effect.kl)}")
    return part(table(head, made, numeric=(1, 3, 5, 6, 7)), sentence, name="effect on the next token")


def _shifted(shift: TokenShift) -> list[object]:
    before, after = shift.probability_before, shift.probability_after
    return [
        cell_token(shift.text, shift.token),
        percent(before), meter(share(before), "dj-narrow dj-grey"),
        percent(after), meter(share(after), "dj-narrow dj-changed"),
        *_logits(shift.logit_before, shift.logit_after),
    ]  # fmt: skip


def top_table(top: Sequence[TopToken]) -> Html:
    """Draw the most probable tokens of a distribution as bars."""
    rows = [[cell_token(t.text, t.token), percent(t.probability), meter(share(t.probability))] for t in top]
    return table(["token", "probability", ""], rows, numeric=(1,))


def _verdict(effect: EffectReading) -> str:
    first, then = (quoted(top[0].text, top[0].token) for top in (effect.before, effect.after))
    if effect.top1_changed:
        return f"top token changed from {first} to {then}"
    return f"top token stays {then}"
