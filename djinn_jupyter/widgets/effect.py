"""What an edit did: the numbers of the edit itself, and the next token's distribution without and with it."""

from __future__ import annotations

from collections.abc import Sequence

from djinn_jupyter.widgets.markup import Html, div, joined, table
from djinn_jupyter.widgets.spelling import at_positions, columns, figure, nats, percent, plural, quoted, shape, share
from djinn_jupyter.widgets.theme import card, facts, meter, mono, part
from djinn_jupyter.widgets.tokens import cell_token, guesses_plain
from djinn_jupyter.widgets.view import View
from djinn_jupyter.wire.nouns import TopToken
from djinn_jupyter.wire.readings import EffectReading
from djinn_jupyter.wire.replies import Edited


def edit_view(edited: Edited, effect: EffectReading | None = None) -> View:
    """The reply to an edit. An edit that changed nothing says so first."""
    title = "Edited" if edited.entries_changed else "Nothing changed"
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
        title=joined([f"{title} at ", mono(edited.site)]),
        dot="paused",
    )
    plain = (
        f"{title.lower()} at {edited.site}: {edited.edit}, {shape(edited.shape)} at {at_positions(edited.positions)}; "
        f"{plural(edited.entries_changed, 'entry', 'entries')} changed, norm {figure(edited.norm_before)} to "
        f"{figure(edited.norm_after)}, relative size {_relative(edited)}"
    )
    return View(plain="\n".join([plain, *effect_lines(effect, edited=True)]), html=html)


def _relative(edited: Edited) -> str:
    return "undefined (the value was zero)" if edited.relative_size is None else figure(edited.relative_size)


def effect_lines(effect: EffectReading | None, *, edited: bool) -> list[str]:
    """The effect in plain text; for a stop that nobody edited only what comes next."""
    if effect is None:
        return []
    if not edited:
        return [f"next token: {guesses_plain(effect.before, len(effect.before))}"]
    rows = [
        [quoted(text, token), percent_or_less(before, effect.before), percent_or_less(after, effect.after)]
        for text, token, before, after in paired(effect)
    ]
    return [f"{_verdict(effect)}, KL {nats(effect.kl)}", columns(rows, ["token", "without", "with"])]


def effect_part(effect: EffectReading, *, edited: bool) -> Html:
    """The effect as a section of a card: two distributions side by side."""
    if not edited:
        return part(top_table(effect.before), name="next token, if resumed as it is")
    rows = []
    for text, token, before, after in paired(effect):
        rows.append([
            cell_token(text, token),
            percent_or_less(before, effect.before), meter(share(before or 0.0), "dj-grey"),
            percent_or_less(after, effect.after), meter(share(after or 0.0), "dj-changed"),
        ])  # fmt: skip
    head = ["token", "without the edit", "", "with it", ""]
    sentence = div("dj-soft", f"{_verdict(effect)}; KL {nats(effect.kl)}")
    return part(table(head, rows, numeric=(1, 3)), sentence, name="effect on the next token")


def top_table(top: Sequence[TopToken]) -> Html:
    """A distribution's head as bars."""
    rows = [[cell_token(t.text, t.token), percent(t.probability), meter(share(t.probability))] for t in top]
    return table(["token", "probability", ""], rows, numeric=(1,))


def paired(effect: EffectReading) -> list[tuple[str, int, float | None, float | None]]:
    """(text, token, probability without, with) of every token in either head, the edited order first.

    None where a token is not in that head: its probability is at most that of the head's last token.
    """
    before = {t.token: t for t in effect.before}
    after = {t.token: t for t in effect.after}
    rows = []
    for token, top in {**after, **{k: t for k, t in before.items() if k not in after}}.items():
        old, new = before.get(token), after.get(token)
        rows.append((top.text, token, old.probability if old else None, new.probability if new else None))
    return rows


def percent_or_less(probability: float | None, head: Sequence[TopToken]) -> str:
    """The probability, or the bound that follows from not being among the head's tokens."""
    if probability is not None:
        return percent(probability)
    bound = percent(head[-1].probability) if head else "?"
    return bound if bound.startswith("<") else f"\u2264{bound}"


def _verdict(effect: EffectReading) -> str:
    first, then = (quoted(top[0].text, top[0].token) for top in (effect.before, effect.after))
    if effect.top1_changed:
        return f"top token changed from {first} to {then}"
    return f"top token stays {then}"
