"""`dj.attribute`: the effects of a sweep, estimated by gradients from three passes."""

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
    """Return an estimate of each cell's effect in a sweep: (clean - corrupted) activation x gradient of the metric on
    the corrupted prompt (attribution patching; Nanda 2023, Syed et al. 2023). All cells come from two passes forward
    and one back.

    The values are changes of the metric, to first order, with the sign of a sweep that patches from `clean`: they
    estimate `grid.values - grid.corrupted` of `dj.sweep` with the same arguments. With an `edit` the change is the
    edit's. Without `edit` and `clean` the values are gradient x activation, minus the estimated effect of zeroing.

    With `steps` the gradient is the mean over as many points on the path from the corrupted prompt's embedding to the
    clean one's, the midpoints of equal parts (integrated gradients; Sundararajan et al. 2017, Hanna et al. 2024); one
    step is the corrupted prompt itself. At "resid_pre.0" many steps sum to the whole change of the metric.

    `corrections` are those of AtP* (Kramar et al. 2024). "attention" carries the changes of queries and keys through
    the softmax before they are estimated (the QK fix): a saturated one has almost no gradient. "cancellation" makes a
    score the mean magnitude over gradients that each bypass one layer (GradDrop): where the effects of two paths
    cancel, the plain score is near 0. All scores are then magnitudes.

    An exact sweep in the same call also computes the `top` cells with the largest scores, each alone:
    `scores.confirmed` has its changes there, NaN elsewhere, and `scores.correlation` their agreement.

    Sites, axes, prompts, pairs, positions, windows, metrics, the adapter and engines `beside` are as in `dj.sweep`,
    except that rank() has no gradient. A model with recurrent states, or with streamed weights, gives none. UsageError;
    UnknownSite; InvalidCondition; SlabFull.

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
