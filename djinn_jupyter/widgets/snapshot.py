"""The view of an inspection: the values of a site as a picture with the main figures; attention as a pattern."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from djinn_jupyter.api.looks import Snapshot
from djinn_jupyter.api.names import labelled
from djinn_jupyter.widgets.chart import Chart
from djinn_jupyter.widgets.html import Html, card, joined, named_site, part, table
from djinn_jupyter.widgets.matrix import matrix, spelled
from djinn_jupyter.widgets.panels import Heatmap, attention, token_labels
from djinn_jupyter.widgets.pattern import pattern
from djinn_jupyter.widgets.pictures import Picture, as_rows, image, read_of, signed, signed_picture, whole_picture
from djinn_jupyter.widgets.spelling import columns, figure, plural, spans
from djinn_jupyter.widgets.stop import Look, features_of, largest, legend, picture_of, site_of
from djinn_jupyter.widgets.tables import table_view
from djinn_jupyter.widgets.tokens import cell_token
from djinn_jupyter.widgets.view import View

ROWS = 16


def snapshot_view(look: Look) -> View:
    """Return a card of the values; the chart of attention has a picture for each head."""
    plain, html = pattern(look) if look.is_pattern else _values(look)
    if look.is_pattern:
        return View(plain=plain, html=html, chart=partial(_attention, look))
    return View(plain=plain, html=html, chart=partial(_activation, look), pictures="img[src*=png]")


def snapshot_card(snapshot: Snapshot) -> View:
    """Show a kept value by its text, because it may have millions of numbers; its chart has no texts of tokens."""
    return replace(table_view(snapshot), chart=partial(_chart, snapshot))


def _chart(snapshot: Snapshot) -> Chart:
    value, at = np.asarray(snapshot.value).astype(np.float32), list(snapshot.positions)
    if snapshot.site.startswith("pattern"):
        heads = value.reshape(len(at), -1, value.shape[-1]).swapaxes(0, 1)
        return Chart(panels=[
            attention(f"{snapshot.site}, head {head}" if len(heads) > 1 else snapshot.site, cells, at,
                      range(value.shape[-1]))
            for head, cells in enumerate(heads)
        ])  # fmt: skip
    return _drawn(signed(value), snapshot.site, at)


def _activation(look: Look) -> Chart:
    return _drawn(_signed(look), look.site, _labels(look, look.all_positions))


def _drawn(picture: Picture, site: str, labels: Sequence[object]) -> Chart:
    rows = labels[:: picture.rows_per_cell]
    across = [i * picture.columns_per_cell for i in range(picture.cells.shape[1])]
    return Chart(panels=[Heatmap(title=labelled(site), cells=picture.cells, rows=rows, columns=across, down="position",
                                 across="index", limit=picture.limit)])  # fmt: skip


def _attention(look: Look) -> Chart:
    drawn = look.attention
    queries = _labels(look, look.all_positions)[:: drawn.rows_per_cell]
    keys = _labels(look, look.key_positions)[:: drawn.columns_per_cell]
    titles = [f"{look.site}, head {head}" if len(look.heads) > 1 or "[" not in look.site else look.site
              for head in look.heads]  # fmt: skip
    return Chart(
        panels=[attention(title, cells, queries, keys) for title, cells in zip(titles, drawn.cells, strict=False)]
    )


def _labels(look: Look, positions: Sequence[int]) -> list[str]:
    return token_labels([look.texts.get(position, "") for position in positions], positions)


def _signed(look: Look) -> Picture:
    return signed(look.values) if look.pooled is None else signed_picture(look.pooled)


def _values(look: Look) -> tuple[str, Html]:
    rows = as_rows(look.values)
    shown = list(range(max(0, len(rows) - ROWS), len(rows)))
    figures = [[figure(float(v)) for v in (_norm(rows[i]), rows[i].min(), rows[i].max())] for i in shown]
    positions = [look.positions[i] for i in shown]
    texts = [look.texts.get(p, "") for p in positions]
    head = ["position", "token", "norm", "min", "max"]
    plain_rows = [[str(p), repr(t), *f] for p, t, f in zip(positions, texts, figures, strict=True)]
    made = [[p, cell_token(t), *f] for p, t, f in zip(positions, texts, figures, strict=True)]
    picture, count = _picture(look), len(look.all_positions)
    alt = f"values at {look.site}: positions {spans(look.all_positions)} down, {features_of(look.values)} values across"
    height = min(320, max(22, picture.cells.shape[0] * (22 if count <= ROWS else 3)))
    most = largest(site_of(look.site), rows[-1].reshape(look.values.shape[1:]))
    heads = _by_head(look, shown) if look.has_heads else []
    names = [str(h) for h in look.heads] if heads else []
    html = card(
        part(
            image(picture, width=640, height=height, alt=alt, most="100%"),
            legend(picture, features_of(look.values), "value", read=read_of(look.pooled)),
        ),
        part(_heads_table(look, positions, heads, names), name="norm of each head") if heads else None,
        part(table(head, made, numeric=(0, 2, 3, 4)), name=_rows_name(len(shown), count)),
        part(most, name=f"largest at position {look.positions[-1]}"),
        title=named_site(look.site),
        beside=look.line,
        session=look.session,
    )
    told = f"{labelled(look.site)}: {look.line}"
    plain = f"{told}\n{columns(plain_rows, head)}\nlargest at the last position: {most}"
    if heads:
        by_head = [[str(p), *spelled(norms)] for p, norms in zip(positions, heads, strict=True)]
        plain += f"\nnorm of each head\n{columns(by_head, ['position', *names])}"
    return plain, html


def _picture(look: Look) -> Picture:
    site = site_of(look.site)
    return picture_of(site, look.values) if look.pooled is None else whole_picture(look.pooled, site)


def _by_head(look: Look, shown: Sequence[int]) -> list[list[float]]:
    """Return L2 norms [positions shown][heads]."""
    values = np.asarray(look.values)[list(shown)].astype(np.float64)
    return [[float(norm) for norm in row] for row in np.linalg.norm(values, axis=-1)]


def _heads_table(look: Look, positions: Sequence[int], norms: Sequence[Sequence[float]], names: Sequence[str]) -> Html:
    rows = [
        (joined([p, " ", cell_token(look.texts.get(p, ""))]), of_heads)
        for p, of_heads in zip(positions, norms, strict=True)
    ]
    return matrix("head", names, rows)


def _norm(row: NDArray[np.float32]) -> float:
    return float(np.linalg.norm(row.astype(np.float64)))


def _rows_name(shown: int, count: int) -> str | None:
    return f"the last {shown} of {plural(count, 'position')}" if shown < count else None
