"""The stopped values of two sessions apart: by position, and the place where they are farthest from each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from djinn_jupyter.api.names import labelled
from djinn_jupyter.widgets.html import CHANGED, GREY, Html, card, div, joined, meter, mono, part, table
from djinn_jupyter.widgets.matrix import matrix, spelled
from djinn_jupyter.widgets.pictures import ABOVE, as_rows
from djinn_jupyter.widgets.spelling import columns, figure, marked, percent, plural, quoted, rounded, shape, share
from djinn_jupyter.widgets.tokens import cell_token, token_strip
from djinn_jupyter.widgets.view import View
from djinn_jupyter.wire.nouns import TopToken
from djinn_jupyter.wire.readings import Apart, Compared
from djinn_jupyter.wire.texts import label

TO_EXACT = ".9g"  # a float32 is itself again


def values_plain(compared: Compared) -> list[str]:
    """Spell how far the values are apart."""
    apart = compared.apart
    if apart is None or not apart.differing:
        return [f"values at {labelled(compared.site)}: {said(compared)}"]
    by_position = zip(apart.positions, apart.distances, strict=True)
    distances = ", ".join(f"{position}: {figure(distance, 2)}" for position, distance in by_position)
    return [f"values at {labelled(compared.site)}: {distances} (relative distance by position)", f"  {said(compared)}"]


def values_part(a: DiffSide, compared: Compared) -> Html:
    """Draw the distance at each position, and say where it is largest."""
    name, note = f"values at {labelled(compared.site)}", div("dj-note", said(compared))
    if compared.apart is None or not compared.apart.differing:
        return part(note, name=name)
    return part(_distances(a, compared.apart), note, name=f"distance of the {name}, relative to {label(a.name)}")


def _distances(a: DiffSide, apart: Apart) -> Html:
    shown = list(zip(apart.positions, apart.distances, strict=True))
    most = max((rounded(distance, 2) for _, distance in shown if distance), default=0.0) or 1.0
    rows = [
        [p, cell_token(a.texts[p], a.tokens[p]), figure(distance, 2), meter(_drawn(distance, most), CHANGED)]
        for p, distance in shown
    ]
    return table(["position", "token", "distance", ""], rows, numeric=(0, 2))


def _drawn(distance: float | None, most: float) -> float:
    return rounded(distance or 0.0, 2) / most


def said(compared: Compared) -> str:
    """Say in words how many numbers differ and which the most, or for which reason none were compared."""
    apart, (one, other) = compared.apart, compared.dtypes
    if apart is None:
        a, b = compared.shapes
        why = "the passes have no position in common" if a[1:] == b[1:] else "their positions have other shapes"
        return f"not compared, {shape(a)} and {shape(b)}: {why}"
    of = plural(apart.numbers, "number") + ("" if one == other else f" ({one} and {other})")
    if not apart.differing:
        return f"all {of} are equal"
    parts = [f"{apart.differing:,} of {of} differ"]
    if apart.largest is not None:
        parts.append(_largest(apart))
    if apart.not_finite:
        parts.append(f"{apart.not_finite:,} of them are not finite on one side, and in no distance")
    return "; ".join(parts)


def _largest(apart: Apart) -> str:
    assert apart.largest is not None
    found = apart.largest
    place = ", ".join(map(str, found.index))
    at = f"position {found.position}" + (f", index [{place}]" if place else "")
    return f"the most by {found.difference:{TO_EXACT}}, at {at}: {found.a:{TO_EXACT}} and {found.b:{TO_EXACT}}"


# Two sessions side by side: their tokens, their next-token predictions, and the distance of two stopped values.

ROWS = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class DiffSide:
    """One session's part of a diff: its tokens, the length of the prompt, the text of both parts, the most probable
    next tokens, and the site where it is stopped if it is."""

    name: str
    state: str
    tokens: Sequence[int]
    texts: Sequence[str]
    prompt_tokens: int
    prompt_text: str
    new_text: str
    top: Sequence[TopToken] = ()
    site: str | None = None


ValuePair = tuple[NDArray[np.generic], NDArray[np.generic]]


def diff_view(
    a: DiffSide,
    b: DiffSide,
    *,
    compared: Compared | None = None,
    positions: Sequence[int] = (),
    layers: Mapping[str, ValuePair] | None = None,
) -> View:
    """Compare two sessions. `compared` is of their stopped values. `layers` maps a site to the values [positions,
    features] of both at the shared `positions`."""
    differs = differing(a.tokens, b.tokens)
    sentence = _sentence(a, b, differs)
    tops = _tops(a, b)
    plain = [f"{label(a.name)} against {label(b.name)}: {sentence}", _plain_text(a), _plain_text(b)]
    plain += (
        [columns([[quoted(t, i), x, y] for t, i, x, _, y, _ in tops], ["next", label(a.name), label(b.name)])]
        if tops
        else []
    )
    plain += values_plain(compared) if compared is not None else []
    by_layer = {site: _relative(*values) for site, values in (layers or {}).items()}
    plain += [_layers_plain(positions, by_layer)] if by_layer else []
    html = card(
        part(_strip(a, differs), name=f"{label(a.name)}, {a.state}"),
        part(_strip(b, differs), name=f"{label(b.name)}, {b.state}"),
        _tops_part(a, b, tops) if tops else None,
        values_part(a, compared) if compared is not None else None,
        _layers_part(a, b, positions, by_layer) if by_layer else None,
        title=f"{label(a.name)} against {label(b.name)}",
        beside=sentence,
    )
    return View(plain="\n".join(plain), html=html)


def differing(a: Sequence[int], b: Sequence[int]) -> list[int]:
    """Return the positions at which the two sessions differ in their token, including the rest of the longer one."""
    return [i for i in range(max(len(a), len(b))) if i >= len(a) or i >= len(b) or a[i] != b[i]]


def _sentence(a: DiffSide, b: DiffSide, differs: Sequence[int]) -> str:
    if not differs:
        return f"the same {plural(len(a.tokens), 'token')}"
    first = differs[0]
    longest = max(len(a.tokens), len(b.tokens))
    return f"{len(differs)} of {plural(longest, 'position')} differ, the first at {first}"


def _plain_text(side: DiffSide) -> str:
    return f"  {label(side.name)} ({side.state}): {side.prompt_text}|{side.new_text}"


def _strip(side: DiffSide, differs: Sequence[int]) -> Html:
    new = set(range(side.prompt_tokens, len(side.tokens)))
    return token_strip(side.texts, side.tokens, new=new - set(differs), differs=frozenset(differs))


def _tops(a: DiffSide, b: DiffSide) -> list[tuple[str, int, str, float, str, float]]:
    """Return rows (text, token, spelled and drawn probability in a, the same in b), most probable in either first."""
    if not a.top or not b.top:
        return []
    of_a, of_b = ({t.token: t for t in side.top} for side in (a, b))
    rows = []
    for token, top in {**of_a, **of_b}.items():
        p, q = of_a.get(token), of_b.get(token)
        spelled = [percent(t.probability) if t else "\u2013" for t in (p, q)]
        drawn = [share(t.probability) if t else 0.0 for t in (p, q)]
        rows.append((top.text, token, spelled[0], drawn[0], spelled[1], drawn[1]))
    return rows


def _tops_part(a: DiffSide, b: DiffSide, tops: Sequence[tuple[str, int, str, float, str, float]]) -> Html:
    rows = [[cell_token(t, i), x, meter(p, GREY), y, meter(q)] for t, i, x, p, y, q in tops]
    head = ["token", label(a.name), "", label(b.name), ""]
    return part(table(head, rows, numeric=(1, 3)), name="the next token; \u2013 is not among the first of that session")


def _relative(a: NDArray[np.generic], b: NDArray[np.generic]) -> list[float | None]:
    """Return |b - a| / |a| of each row; None where a is zero."""
    rows_a, rows_b = as_rows(a), as_rows(b)
    sizes, apart = np.linalg.norm(rows_a, axis=1), np.linalg.norm(rows_b - rows_a, axis=1)
    return [float(d) / float(n) if n else None for d, n in zip(apart, sizes, strict=True)]


def _layers_plain(positions: Sequence[int], layers: Mapping[str, Sequence[float | None]]) -> str:
    rows = [[site, *spelled(values)] for site, values in layers.items()]
    return "relative distance by layer and position\n" + columns(rows, ["site", *(str(p) for p in positions)])


def _layers_part(
    a: DiffSide, b: DiffSide, positions: Sequence[int], layers: Mapping[str, Sequence[float | None]]
) -> Html:
    """Draw layers down, the first on top, and positions across, named by both tokens where they differ."""
    titles = [_title(a, b, position) for position in positions]
    rows = [(mono(site), values) for site, values in layers.items()]
    name = f"distance by layer and position, relative to {label(a.name)}; 0 is equal bit for bit"
    return part(matrix("", titles, rows, tint=ABOVE), name=name)


def _title(a: DiffSide, b: DiffSide, position: int) -> Html:
    names = [marked(side.texts[position], side.tokens[position]) for side in (a, b)]
    same = a.tokens[position] == b.tokens[position]
    return mono(names[0] if same else joined(names, " | "))
