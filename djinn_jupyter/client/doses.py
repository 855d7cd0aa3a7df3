"""Dose-responses: metrics of the next token by coefficient, of the rows that finished."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from djinn_jupyter.client.frames import Tabular
from djinn_jupyter.client.stops import Finished


def doses_of(rows: Sequence[object], coefs: Sequence[float], samples: int) -> list[float]:
    """Return the coefficient of each row: the samples of one follow one another, and the coefficients of a prompt."""
    return [coefs[number // samples % len(coefs)] for number in range(len(rows))]


class DoseRows(Tabular, list[Any]):
    """The rows of a dose-response in order, each with its coefficient in `doses`; and as a table. `responses` has the
    mean of each of `metrics` by coefficient, read behind the prompt."""

    def __init__(
        self,
        rows: Sequence[object],
        doses: Sequence[float],
        metrics: Sequence[str] = (),
        responses: Mapping[float, Sequence[float]] | None = None,
    ) -> None:
        super().__init__(rows)
        self.doses, self.metrics, self.responses = tuple(doses), tuple(metrics), dict(responses or {})

    def columns(self) -> dict[str, list[Any]]:
        """Return a row for each row of the batch: its coefficient, its text (None where it has none), and each metric
        at that coefficient."""
        found = [self.responses.get(dose) for dose in self.doses]
        table: dict[str, list[Any]] = {
            "coefficient": list(self.doses),
            "text": [getattr(row, "text", None) for row in self],
        }
        for number, metric in enumerate(self.metrics):
            table[metric] = [one and one[number] for one in found]
        return table


def responses(rows: Sequence[object], doses: Sequence[float], metrics: Sequence[str]) -> dict[float, tuple[float, ...]]:
    """Return the mean of each metric over the rows of each dose that finished, by rising dose; a dose of which none
    finished is left out."""
    found: dict[float, list[tuple[float, ...]]] = {}
    for row, dose in zip(rows, doses, strict=True):
        if isinstance(row, Finished):
            found.setdefault(dose, []).append(row.session.metrics(*metrics))
    return {dose: tuple(sum(one) / len(one) for one in zip(*found[dose], strict=True)) for dose in sorted(found)}
