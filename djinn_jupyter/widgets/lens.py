"""The logit lens: the model's own epilogue applied to a value, by position or by layer and position."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from djinn_jupyter.api.influences import Edits, influence_lines, sections
from djinn_jupyter.api.looks import Effect, Lens
from djinn_jupyter.api.names import labelled
from djinn_jupyter.api.watching import Watched
from djinn_jupyter.widgets.chart import Chart
from djinn_jupyter.widgets.charts import DRAWN, keys, line_chart, series_chart
from djinn_jupyter.widgets.html import (
    CHANGED,
    GREY,
    Html,
    card,
    div,
    element,
    facts,
    folded,
    joined,
    meter,
    mono,
    named_site,
    part,
    span,
    table,
)
from djinn_jupyter.widgets.panels import Bars, Heatmap, Lines, token_labels
from djinn_jupyter.widgets.pictures import BELOW, as_rows, background
from djinn_jupyter.widgets.spelling import (
    amount,
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
    truncated,
)
from djinn_jupyter.widgets.tokens import cell_token, guess, guesses_plain
from djinn_jupyter.widgets.view import View
from djinn_jupyter.wire.looks import spell_watch
from djinn_jupyter.wire.nouns import LensRow, TopToken, WatchDescription
from djinn_jupyter.wire.readings import EffectReading, Influences, TokenShift
from djinn_jupyter.wire.replies import Edited, Paused
from djinn_jupyter.wire.texts import label


def influence_parts(told: Influences, edits: Edits = (), but: Edits = ()) -> list[Html]:
    """Return one section for each kind of influence; none where the model is unmodified. `edits` are the stop's own
    edits to list, `but` those that the card lists elsewhere."""
    found = sections(told, edits, but)
    return [part(*(_note(*line) for line in lines), name=name) for name, lines in found.items()]


def _note(line: str, size: str) -> Html:
    return div("dj-note", line, " ", span("dj-soft", f"({size})") if size else None)


LAYERS_SHOWN = 96
GRID_POSITIONS = 12  # the number that fits a notebook's column; the last position is always visible
FEW, LETTERS_OF_FEW, LETTERS = 8, 13, 7


def lens_view(site: str, rows: Sequence[LensRow], *, session: str | None = None) -> View:
    """Show the most probable tokens of the lens at each position of one site."""
    depth = max((len(row.top) for row in rows), default=0)
    plain = [[str(r.position), quoted(r.text, r.token), guesses_plain(r.top, depth)] for r in rows]
    made = [[r.position, cell_token(r.text, r.token), *([guess(top) for top in r.top] or "-")] for r in rows]
    head = ["position", "token", *(str(i + 1) for i in range(depth))]
    html = card(
        part(table(head, made, numeric=(0,))),
        title=joined(["Logit lens at ", named_site(site)]),
        beside=f"top {depth} at {plural(len(rows), 'position')}",
        session=session,
    )
    text = f"logit lens at {labelled(site)}\n{columns(plain, ['position', 'token', 'lens'])}"
    return View(plain=text, html=html, chart=lambda: Chart(panels=[_ranks(site, rows)]))


def lens_card(lens: Lens) -> View:
    """Show a lens as `%djinn_lens` does."""
    return lens_view(lens.site, lens.rows)


def _ranks(site: str, rows: Sequence[LensRow]) -> Heatmap:
    """Return the probabilities of the top tokens, which the cells name: a column for each position, a row for each
    rank."""
    depth = max((len(row.top) for row in rows), default=0)
    ranked = [[row.top[rank] if rank < len(row.top) else None for row in rows] for rank in range(depth)]
    return _predicted(f"logit lens at {labelled(site)}", ranked, range(1, depth + 1), rows, down="rank")


def _predicted(
    title: str,
    found: Sequence[Sequence[TopToken | None]],
    names: Sequence[object],
    rows: Sequence[LensRow],
    *,
    down: str,
) -> Heatmap:
    return Heatmap(
        title=title,
        cells=np.array([[np.nan if one is None else one.probability for one in line] for line in found]),
        words=[["" if one is None else marked(one.text, one.token) for one in line] for line in found],
        rows=names,
        columns=token_labels([row.text for row in rows], [row.position for row in rows]),
        down=down,
        across="position",
        measure="probability",
        signed=False,
    )


def lens_grid_view(
    layers: Mapping[str, Sequence[LensRow]],
    *,
    session: str | None = None,
    positions: int = GRID_POSITIONS,
    title: str = "Logit lens by layer",
    whole: Html | None = None,
) -> View:
    """Show the lens's top token by site (the first layer on top) and position, tinted by its probability; and the
    probability of each requested token at the last position, layer by layer. `whole` is a part above, of all
    positions."""
    downwards = list(layers.items())[-LAYERS_SHOWN:]
    first = downwards[0][1][-positions:]
    letters = LETTERS_OF_FEW if len(first) <= FEW else LETTERS
    head = ["", *(_over(marked(row.text, row.token), letters) for row in first)]
    made = [[mono(site), *(_tinted(row, letters) for row in rows[-positions:])] for site, rows in downwards]
    chosen = _by_layer(layers)
    html = card(
        whole,
        part(table(head, made, last=True)),
        _chosen_part(chosen, first[-1].position) if chosen else None,
        title=title,
        beside=f"top token at {at_positions([row.position for row in first])}, the first layer on top",
        session=session,
    )
    plain = [[site, *(quoted(r.top[0].text, r.top[0].token) for r in rows[-positions:])] for site, rows in downwards]
    titles = ["site", *(quoted(row.text, row.token) for row in first)]
    text = f"{title.lower()}, top token at each position\n{columns(plain, titles)}"
    plain_text = text + _chosen_plain(chosen, first[-1].position)
    return View(plain=plain_text, html=html, chart=lambda: Chart(panels=[by_site(layers)]))


def by_site(layers: Mapping[str, Sequence[LensRow]]) -> Heatmap:
    """Return the probability of the top token of every site at every position, the first layer on top."""
    found = [[row.top[0] for row in rows] for rows in layers.values()]
    return _predicted("logit lens, top token", found, list(layers), next(iter(layers.values())), down="site")


def _by_layer(layers: Mapping[str, Sequence[LensRow]]) -> list[tuple[int, tuple[TopToken, ...]]]:
    """Return (layer, the requested tokens) at the last position, the first layer first."""
    last = [(site.rpartition(".")[2], rows[-1].chosen) for site, rows in list(layers.items())[-LAYERS_SHOWN:]]
    return [(int(layer), chosen) for layer, chosen in last if chosen and layer.isdecimal()]


def _chosen_part(chosen: Sequence[tuple[int, tuple[TopToken, ...]]], position: int) -> Html:
    names = [marked(t.text, t.token) for t in chosen[0][1]]
    series = [[tokens[i].probability for _, tokens in chosen] for i in range(len(names))]
    rows = [[layer, *(percent(t.probability) for t in tokens)] for layer, tokens in chosen]
    alt = f"probability of {', '.join(names)} at position {position} after each layer"
    chart = series_chart([layer for layer, _ in chosen], series, name="layer", alt=alt, most=1.0, spelled=percent)
    listed = folded(table(["layer", *names], rows, numeric=range(len(names) + 1)))
    return part(chart, keys(names), listed, name=f"probability at position {position} by layer")


def _chosen_plain(chosen: Sequence[tuple[int, tuple[TopToken, ...]]], position: int) -> str:
    if not chosen:
        return ""
    rows = [[str(layer), *(percent(t.probability) for t in tokens)] for layer, tokens in chosen]
    names = [quoted(t.text, t.token) for t in chosen[0][1]]
    return f"\nprobability at position {position} by layer\n{columns(rows, ['layer', *names])}"


def _tinted(row: LensRow, letters: int) -> Html:
    top = row.top[0]
    style = background(BELOW, share(top.probability) * 0.5)
    name, chance = marked(top.text, top.token), percent(top.probability)
    title = chance if len(name) <= letters else f"{name} {chance}"
    return element("td", mono(truncated(name, letters)), class_="dj-tint", style=style, title=title)


def _over(name: str, letters: int) -> Html:
    """Return a column's header cell."""
    title = name if len(name) > letters else None
    return element("th", mono(truncated(name, letters)), scope="col", class_="dj-tint", title=title)


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
        title=joined([f"{title} at ", named_site(edited.site)]),
        beside=at_positions(edited.positions),
        session=stop.session,
    )
    plain = (
        f"{title.lower()} at {labelled(edited.site)}: {edited.edit}, {shape(edited.shape)} at "
        f"{at_positions(edited.positions)}; "
        f"{plural(edited.entries_changed, 'entry', 'entries')} changed, norm {figure(edited.norm_before)} to "
        f"{figure(edited.norm_after)}, relative size {_relative(edited)} (session {label(stop.session)})"
    )
    lines = influence_lines(stop.influences, others, but=stop.edits)
    return View(plain="\n".join([plain, *effect_lines(effect, edited=True), *lines]), html=html)


def _relative(edited: Edited) -> str:
    return "undefined (the value was zero)" if edited.relative_size is None else figure(edited.relative_size)


def effect_card(effect: Effect) -> View:
    """Show the effect of a stop's edits on the next token."""
    read, names = effect.reply.effect, [marked(one.text, one.token) for one in effect.reply.effect.shifts]
    series = {
        "without": [one.probability_before for one in read.shifts],
        "with": [one.probability_after for one in read.shifts],
    }
    bars = Bars(
        title=f"next token, edits at {labelled(effect.site)}", names=names, series=series, measure="probability"
    )
    html = card(effect_part(read, edited=True), title=joined(["Effect at ", named_site(effect.site)]),
                session=effect.reply.stop.session)  # fmt: skip
    return View(plain=repr(effect), html=html, chart=lambda: Chart(panels=[bars]))


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
        percent(before), meter(share(before), GREY),
        percent(after), meter(share(after), CHANGED),
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


# The view of a watch, pass by pass: the norm of a site's value, or its component along a direction.

ROWS = 48


def watch_view(
    watch: WatchDescription,
    values: Sequence[NDArray[np.generic]],
    positions: Sequence[Sequence[int]],
    *,
    runs: Sequence[int] = (),
    session: str | None = None,
) -> View:
    """Draw the norms (or values, or components) of all recorded passes: `values`, `positions` and `runs` have one entry
    a pass."""
    names, title = _pass_names(runs, len(values)), labelled(spell_watch(watch.site, watch.direction))
    measure = _measure(watch, values)
    points = [
        (name, position, float(np.linalg.norm(row)) if measure == "norm" else float(row.item()))
        for name, value, covered in zip(names, values, positions, strict=True)
        for position, row in zip(covered, as_rows(value), strict=True)
    ]
    if not points:
        return View(
            plain=f"{watch_line(watch)}", html=card(title=mono(title), beside="nothing recorded yet", session=session)
        )

    shown = points[-ROWS:]
    rows = [[name, str(position), figure(measured)] for name, position, measured in shown]
    drawn = line_chart(
        [measured for *_, measured in points],
        [f"position {points[0][1]}", f"position {points[-1][1]}"],
        alt=f"{measure} at {title} over {plural(len(points), 'recorded position')}",
    )
    head = ["run.pass" if len(set(runs)) > 1 else "pass", "position", measure]
    listed = folded(table(head, rows, numeric=(0, 1, 2)))
    html = card(part(drawn, name=measure), part(listed), title=mono(title), beside=_counts(watch), session=session)
    few = rows[-8:]
    plain = f"{watch_line(watch)}\n{columns(few, head)}"
    chart = Chart(panels=[_by_position(points, title, measure)])
    return View(plain=plain, html=html, chart=lambda: chart, pictures=DRAWN)


def _by_position(points: Sequence[tuple[str, int, float]], title: str, measure: str) -> Lines:
    """Return a line over positions; of passes over one position in the order in which they ran."""
    places, values = [position for _, position, _ in points], [measured for *_, measured in points]
    return Lines(title=title, places=places, series={title: values}, across="position", measure=measure)


def watched_card(found: Watched) -> View:
    """Show what a watch recorded as `%djinn_watch --show` does."""
    return watch_view(found.reply.watch, found.values, found.positions, runs=found.runs)


def _measure(watch: WatchDescription, values: Sequence[NDArray[np.generic]]) -> str:
    """Name the number that is drawn of a position: its value where that is one number, else its norm; along a
    direction the component."""
    if watch.direction is not None:
        return "component"
    return "value" if all(one.size == len(one) for one in values) else "norm"


def _pass_names(runs: Sequence[int], count: int) -> list[str]:
    """Return the number of each pass; with several runs prefixed by the run's number: `2.0`."""
    if len(set(runs)) < 2:
        return [str(number) for number in range(count)]
    return [f"{run}.{number - runs.index(run)}" for number, run in enumerate(runs)]


def watch_line(watch: WatchDescription) -> str:
    return f"{watching(watch)}: {_counts(watch)}"


def watching(watch: WatchDescription) -> str:
    return f"watching {labelled(spell_watch(watch.site, watch.direction))}"


def _counts(watch: WatchDescription) -> str:
    held = f"{plural(watch.passes, 'pass', 'passes')} recorded, {amount(watch.bytes_held)}"
    if watch.passes_left_out:
        held += f"; {plural(watch.passes_left_out, 'pass', 'passes')} left out at the cap of {amount(watch.byte_cap)}"
    return held
