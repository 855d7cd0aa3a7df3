"""Metrics that belong to a pair of prompts: one for each pair, as texts, or made from the pair's answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from djinn_jupyter.api.arguments import shown, typed
from djinn_jupyter.errors import UsageError


@dataclass(frozen=True, slots=True)
class PerPair:
    """One metric for each pair of prompts, in the order of the pairs."""

    metrics: tuple[str, ...]

    def require(self, pairs: int) -> None:
        """Raise UsageError for another number of pairs."""
        if len(self.metrics) != pairs:
            raise UsageError(f"There is one metric for each pair, and here are {len(self.metrics)} for {pairs} pairs.")


GivenMetric = str | PerPair | Sequence[str] | None


@typed
def per_pair(metrics: Sequence[str]) -> PerPair:
    """Return metrics that each belong to one pair, in the order of the pairs, as the `metric` of `dj.sweep`, `dj.path`,
    `dj.attribute` and `dj.edges`. UsageError.

    >>> grid = dj.sweep(
    ...     engine,
    ...     clean=["The capital of France is", "The capital of Spain is"],
    ...     corrupted=["The capital of Italy is", "The capital of Italy is"],
    ...     site="resid_post.*",
    ...     metric=dj.per_pair(["logit(' Paris')", "logit(' Madrid')"]),
    ... )
    >>> grid.over, grid.per_pair
    (('pair', 'layer'), ("logit(' Paris')", "logit(' Madrid')"))
    """
    if not metrics:
        raise UsageError("There is one metric for each pair, and here is none.")
    return PerPair(tuple(metrics))


def metric_in(where: str, pair: Mapping[str, Any]) -> str | None:
    """Return a pair's own metric: its `metric`, or the logit of its answer, for two `answers` their difference; None
    without either. Raises UsageError, which names the pair."""
    metric, answers = pair.get("metric"), pair.get("answers")
    if metric is None and answers is None:
        return None
    if answers is None and isinstance(metric, str) and metric:
        return metric
    each = list(answers) if isinstance(answers, list | tuple) else [answers]
    strange = [one for one in each if isinstance(one, bool) or not isinstance(one, str | int) or one == ""]
    if metric is not None or strange or not 1 <= len(each) <= 2:
        raise UsageError(
            f"{where} has a metric (a text) or answers (the text of one token or its id, or two of them: right and "
            f"wrong), not {shown(answers if metric is None else metric)}."
        )
    return " - ".join(f"logit({one!r})" for one in each)


def spelled(metrics: Sequence[str]) -> str:
    """Return the metric of some pairs in the form of titles."""
    return metrics[0] if len(set(metrics)) == 1 else f"{metrics[0]} and each pair's own"
