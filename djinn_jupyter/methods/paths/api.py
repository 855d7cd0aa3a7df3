"""`dj.path`: the effect of one place on another, with everything between held fixed (path patching)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final, Literal

from djinn_jupyter.api.arguments import checked_seed, typed
from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.errors import UsageError
from djinn_jupyter.methods.sweep.api.arguments import axes_of, edit_of, lines_given, metrics_of
from djinn_jupyter.methods.sweep.api.grid import Grid
from djinn_jupyter.methods.sweep.api.pair_metrics import GivenMetric
from djinn_jupyter.methods.sweep.api.sweeping import OnProgress, swept, waits_for_grid
from djinn_jupyter.methods.sweep.request import Sweep
from djinn_jupyter.wire.sites import HEAD_POINTS

_ARROW: Final = re.compile(r"->|\u2192")
_WORD: Final = re.compile(r"[^\s,\[]+(?:\[[^\]]*\])?")  # q.5[0,1] is one
_SENDER: Final = re.compile(r"^(?P<point>[a-z_]+)(?:\.(?P<layer>\d+|\*))?(?:\[(?P<units>[^\]]*)\])?$")


@waits_for_grid("The sweep of paths")
@typed
def path(
    engine: RemoteEngine,
    path: str,
    *,
    clean: object = None,
    corrupted: object = None,
    pairs: object = None,
    metric: GivenMetric = None,
    over: str | Sequence[str] | None = None,
    edit: object = None,
    mode: Literal["fast", "exact"] = "fast",
    seed: int = 0,
    so_far: Grid | None = None,
    adapter: str | None = None,
    beside: Sequence[RemoteEngine] = (),
    on_progress: OnProgress | None = None,
) -> Grid:
    """Return the metric of the prompt `clean` where one path carries another value. The sender has its value on the
    prompt `corrupted`, or an `edit` such as `dj.zero()`, and only the receivers see it. The outputs of attention and
    MLP between them are those of the clean prompt, and everything after the receivers follows from their input (path
    patching, Wang et al. 2022; here MLPs between are frozen too).

    A path is written "z.2[1] -> q.5[0]". After the arrow there may be several receivers, as "q.5[0], k.5[0]": inputs of
    heads (q, k, v), of attention or an MLP (attn_in, mlp_in), a residual, or "logits", the input of the unembedding.
    Whatever the sender leaves open is swept: "z -> q.5[0]" over all layers and heads, "z.2" over the heads of layer 2,
    "mlp_out" over layers; `over` names other axes, such as ("layer", "position").

    Prompts, metrics, pairs, modes, the adapter, engines `beside` and the grid are as in `dj.sweep`, except that the
    clean prompt is edited: cells are compared with `grid.clean`. A sender after all receivers has the metric of the
    clean prompt. UsageError; UnknownSite; InvalidCondition.

    >>> grid = dj.path(
    ...     engine,
    ...     "z -> logits",
    ...     clean="When Mary and John went to the store, John gave a drink to",
    ...     corrupted="When Mary and John went to the store, Anna gave a drink to",
    ...     metric="logit(' Mary') - logit(' John')",
    ... )
    >>> grid.values.shape, grid.receivers
    ((8, 4), ('resid_post.7',))
    """
    clean, corrupted, metric = lines_given(clean, corrupted, pairs, metric)
    if clean is None:
        raise UsageError("A path needs the line that it lies in, as clean=..., or pairs of lines.")
    sender, receivers = _parted(path)
    request = Sweep(
        session="sweep",
        corrupted=(0,),
        site=sender,
        over=_open(sender) if over is None else axes_of(over, sender),
        metrics=metrics_of(metric),
        edit=edit_of(edit),
        mode=mode,
        seed=checked_seed(seed),
        receivers=receivers,
        into="clean",
    )
    if corrupted is None and edit is None:
        raise UsageError("A path needs the line whose values go along it, as corrupted=..., or an edit such as zero.")
    source = clean if corrupted is None else corrupted
    return swept(
        engine,
        request,
        source,
        clean,
        metric=metric,
        on_progress=on_progress,
        so_far=so_far,
        adapter=adapter,
        beside=beside,
    )


def _parted(path: str) -> tuple[str, tuple[str, ...]]:
    """Return the sender and the receivers of a path."""
    parts = _ARROW.split(path)
    senders, receivers = (_WORD.findall(part) for part in parts) if len(parts) == 2 else ([], [])
    if len(senders) != 1 or not receivers:
        raise UsageError(f"A path is written SENDER -> RECEIVERS, as in z.2[1] -> q.5[0], k.5[0]; {path!r} is none.")
    return senders[0], tuple(receivers)


def _open(sender: str) -> tuple[Any, ...]:
    """Return the axes that a sender leaves open: layers where it names none, and heads where its point has them."""
    matched = _SENDER.match(sender)
    if matched is None:
        return ()  # some other spelling of a whole site
    heads = matched["units"] == "*" or (matched["units"] is None and matched["point"] in HEAD_POINTS)
    return (*(["layer"] if matched["layer"] in (None, "*") else []), *(["head"] if heads else []))
