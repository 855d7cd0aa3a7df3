"""`dj.attribute`: what a sweep would find, estimated by gradients from three passes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import get_args

from djinn_jupyter.api.arguments import typed
from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.errors import UsageError
from djinn_jupyter.methods.sweep.api.arguments import cells_asked, lines_given
from djinn_jupyter.methods.sweep.api.grid import Grid
from djinn_jupyter.methods.sweep.api.pair_metrics import GivenMetric
from djinn_jupyter.methods.sweep.api.sweeping import confirmed, require_confirmable, strongest, swept, waits_for_grid
from djinn_jupyter.methods.sweep.request import MOST_STEPS, Correction, Estimate


@waits_for_grid("The attribution")
@typed
def attribute(
    engine: RemoteEngine,
    *,
    corrupted: object = None,
    site: str,
    over: str | Sequence[str] | None = None,
    metric: GivenMetric = None,
    clean: object = None,
    pairs: object = None,
    edit: object = None,
    positions: object = None,
    align: object = None,
    window: int | Mapping[str, int] = 1,
    in_pairs: bool = False,
    steps: int = 1,
    corrections: str | Sequence[str] = (),
    top: int | None = None,
    seed: int = 0,
    adapter: str | None = None,
    beside: Sequence[RemoteEngine] = (),
) -> Grid:
    """Return an estimate of what each cell of a sweep would change: (clean - corrupted) activation x gradient of the
    metric in the corrupted line (attribution patching; Nanda 2023, Syed et al. 2023). All cells come from two passes
    forward and one back.

    The values are changes of the metric, to first order, with the sign of a sweep that patches from `clean`: they
    estimate `grid.values - grid.corrupted` of `dj.sweep` with the same arguments. With an `edit` the change is that of
    the edit; without one and without `clean` the values are gradient x activation, minus what zeroing would change.

    With `steps` the gradient is the mean over as many points of the way from the corrupted line's embedding to the
    clean one's, the midpoints of equal parts (integrated gradients; Sundararajan et al. 2017, Hanna et al. 2024); one
    step is the corrupted line itself. At "resid_pre.0" many steps sum to the whole change of the metric.

    `corrections` are those of AtP* (Kramar et al. 2024). "attention" carries the changes of queries and keys through
    the softmax before they are estimated (the QK fix): a saturated one has hardly a gradient. "cancellation" has a
    score as the mean size over gradients that bypass one layer each (GradDrop): where effects by two ways cancel, the
    plain score is near 0. Then all scores are sizes.

    The `top` cells with the largest scores are computed too, each alone, by an exact sweep in the same call:
    `scores.confirmed` has what it changes there, NaN elsewhere, and `scores.correlation` how well the two agree.

    Sites, axes, lines, pairs, positions, windows, metrics, the adapter and engines `beside` are as in `dj.sweep`, but
    that rank() has no gradient. A model whose layers keep recurrent states, or whose weights stream, gives none.
    UsageError; UnknownSite; InvalidCondition; SlabFull.

    >>> scores = dj.attribute(
    ...     engine,
    ...     clean="The capital of France is",
    ...     corrupted="The capital of Italy is",
    ...     site="z",
    ...     over=("layer", "head"),
    ...     metric="logit(' Paris') - logit(' Rome')",
    ... )
    >>> scores.values.shape, bool(scores.values.max() > 0)
    ((8, 4), True)
    """
    clean, corrupted, metric = lines_given(clean, corrupted, pairs, metric)
    if corrupted is None:
        raise UsageError("An attribution needs the line whose gradient it takes, as corrupted=...")
    if not 1 <= steps <= MOST_STEPS:
        raise UsageError(f"Integrated gradients take from 1 to {MOST_STEPS:,} steps, not {steps:,}.")
    require_confirmable(top, clean, edit)
    request = cells_asked(
        site=site,
        over=over,
        metric=metric,
        edit=edit,
        positions=positions,
        align=align,
        window=window,
        in_pairs=in_pairs,
        seed=seed,
        estimate=Estimate(steps=steps, corrections=_corrections(corrections)),
    )
    scores = swept(
        engine, request, corrupted, clean, metric=metric, on_progress=None, so_far=None, adapter=adapter, beside=beside
    )
    if top is None or scores.interrupted or not scores.is_whole:
        return scores
    return confirmed(engine, scores, strongest(scores, top), beside=beside)


def _corrections(given: str | Sequence[str]) -> tuple[Correction, ...]:
    names = [name.strip() for name in (given.split(",") if isinstance(given, str) else given)]
    known = get_args(Correction)
    if len(set(names)) < len(names) or not set(names) <= set(known):
        raise UsageError(f"The corrections of an attribution are {' and '.join(known)}, not {', '.join(names)}.")
    return tuple(name for name in known if name in names)
