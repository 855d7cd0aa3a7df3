"""Dose-responses: metrics of the next token by coefficient, of the rows that finished."""

from __future__ import annotations

from collections.abc import Sequence

from djinn_jupyter.client.stops import Finished


def doses_of(rows: Sequence[object], coefs: Sequence[float], samples: int) -> list[float]:
    """Return the coefficient of each row: the samples of one follow one another, and the coefficients of a prompt."""
    return [coefs[number // samples % len(coefs)] for number in range(len(rows))]


def responses(rows: Sequence[object], doses: Sequence[float], metrics: Sequence[str]) -> dict[float, tuple[float, ...]]:
    """Return the mean of each metric over the rows of each dose that finished, by rising dose; a dose of which none
    finished is left out."""
    found: dict[float, list[tuple[float, ...]]] = {}
    for row, dose in zip(rows, doses, strict=True):
        if isinstance(row, Finished):
            found.setdefault(dose, []).append(row.session.metrics(*metrics))
    return {dose: tuple(sum(one) / len(one) for one in zip(*found[dose], strict=True)) for dose in sorted(found)}
