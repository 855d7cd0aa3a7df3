"""The arguments of a sweep as users give them; pairs of prompts one by one or in a file, optionally with their own
metrics."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, get_args

import msgspec
import numpy as np

from djinn_jupyter.api.arguments import checked_seed, shown, typed
from djinn_jupyter.api.edits import as_edit
from djinn_jupyter.api.patches import Positions, in_one_engine, no_ends, spell_positions
from djinn_jupyter.api.runs import records
from djinn_jupyter.api.session import RemoteSession
from djinn_jupyter.errors import UsageError
from djinn_jupyter.methods.sweep.api.grid import Grid
from djinn_jupyter.methods.sweep.api.pair_metrics import GivenMetric, PerPair, metric_in
from djinn_jupyter.methods.sweep.request import Axis, Mean, NamedPosition, Noise, Resample, Sweep, SweptEdit
from djinn_jupyter.wire.running import MOST_METRICS
from djinn_jupyter.wire.sites import HEAD_POINTS


def given_pairs(pairs: object) -> tuple[list[object], list[object], PerPair | None]:
    """Return the clean and the corrupted prompts of a list of (clean, corrupted), or of the file at a pathlib.Path,
    whose objects have the fields `clean` and `corrupted`; and the metrics where each object has `answers` or a
    `metric`. Raises UsageError."""
    if isinstance(pairs, Path):
        found = [_pair(where, value) for where, value in records(pairs, "pair")]
    elif isinstance(pairs, str | bytes) or not isinstance(pairs, Iterable):
        raise UsageError("Pairs are a list of (clean, corrupted), or the path of a file of them (pathlib.Path).")
    else:
        found = [_pair(f"pair {number}", value) for number, value in enumerate(pairs)]
    if not found:
        raise UsageError("There are no pairs here.")
    metrics = [metric for _, _, metric in found if metric is not None]
    if metrics and len(metrics) < len(found):
        raise UsageError(f"{len(metrics)} of {len(found)} pairs have a metric or answers; give all of them, or none.")
    own = PerPair(tuple(metrics)) if metrics else None
    return [clean for clean, _, _ in found], [corrupted for _, corrupted, _ in found], own


def _pair(where: str, value: Any) -> tuple[object, object, str | None]:
    if isinstance(value, dict) and {"clean", "corrupted"} <= set(value):
        return value["clean"], value["corrupted"], metric_in(where, value)
    if isinstance(value, list | tuple) and len(value) == 2:
        return value[0], value[1], None
    raise UsageError(f"{where} is neither (clean, corrupted) nor an object with the fields clean and corrupted.")


# The arguments of a sweep as users give them, checked and converted to the wire. Asks nothing of an engine.

AXES: Final = get_args(Axis)
_NUMBERS: Final = re.compile(r"[-\d\s:,]+")
_STARS: Final = re.compile(r"^(?P<point>[a-z_]+|\*)(?P<layer>\.\*)?[^\[]*(?:\[(?:(?P<units>\*)|[^\]]*)\])?$")


@typed
def noise(positions: Positions, scale: float = 3.0) -> Noise:
    """Return noise on the input of the first layer at these positions, of `scale` times the prompt's standard deviation
    there, for `dj.sweep`."""
    ends = no_ends(UsageError("Noise needs both ends of a slice of positions: write '2:5'."))
    return Noise(positions=spell_positions(positions, ends) or (), scale=scale)


def cells_asked(
    *,
    site: str,
    over: str | Sequence[str] | None,
    metric: GivenMetric,
    edit: object,
    positions: object,
    align: object,
    window: int | Mapping[str, int],
    in_pairs: bool,
    seed: int,
    **rest: Any,
) -> Sweep:
    """Return the request for the cells of a sweep, with the `rest` of its fields; its prompts are added later."""
    axes = axes_of(over, site)
    return Sweep(
        session="sweep",
        corrupted=(0,),
        site=site,
        over=axes,
        metrics=metrics_of(metric),
        edit=edit_of(edit),
        positions=named_positions(positions),
        align=alignment_of(align),
        windows=windows_of(window, axes),
        in_pairs=in_pairs,
        seed=checked_seed(seed),
        **rest,
    )


def lines_given(
    clean: object, corrupted: object, pairs: object, metric: GivenMetric
) -> tuple[object, object, GivenMetric]:
    """Return the clean and the corrupted prompts, given separately or as pairs, and the metric: by default the pairs'
    own."""
    if pairs is None:
        return clean, corrupted, metric
    if clean is not None or corrupted is not None:
        raise UsageError("Give the lines once: as pairs, or as clean and corrupted.")
    clean, corrupted, own = given_pairs(pairs)
    return clean, corrupted, own if metric is None else metric


def named_positions(positions: object) -> tuple[NamedPosition, ...]:
    """Return positions by number or by a token's text: -1, [0, " Rome"], "2:5,-1", "last", " Rome"; none for all. A
    quoted one, such as "' 5'", is always a text."""
    if positions is None:
        return ()
    if isinstance(positions, str):
        if len(positions) > 2 and positions[0] == positions[-1] and positions[0] in "'\"":
            return (positions[1:-1],)
        if positions.strip() == "last":
            return (-1,)
        return spell_positions(positions, _no_open_ends) or () if _NUMBERS.fullmatch(positions) else (positions,)
    if isinstance(positions, Iterable):
        return tuple(one for part in _iterated(positions) for one in named_positions(part))
    return spell_positions(positions, _no_open_ends) or ()  # type: ignore[arg-type]


def alignment_of(align: object) -> tuple[tuple[NamedPosition, NamedPosition], ...]:
    """Return the corresponding positions of the corrupted prompt and of the clean one: names that both have, or tuples
    of two."""
    if align is None:
        return ()
    found: list[tuple[NamedPosition, NamedPosition]] = []
    for one in [align] if isinstance(align, str | int | slice) else _iterated(align):
        corrupted, clean = one if isinstance(one, tuple) and len(one) == 2 else (one, one)
        sides = named_positions(corrupted), named_positions(clean)
        if len(sides[0]) != len(sides[1]):
            raise UsageError(f"{corrupted!r} and {clean!r} are not equally many positions, so they cannot be aligned.")
        found += zip(*sides, strict=True)
    return tuple(found)


def _iterated(given: Any) -> list[Any]:
    try:
        return list(given)
    except TypeError:
        raise UsageError(f"{shown(given)} names no positions; write a list such as [' Rome', -1, (2, 3)].") from None


def _no_open_ends() -> tuple[int, int]:
    raise UsageError("A sweep's positions need both ends of a slice: write '2:5'.")


def edit_of(edit: object) -> SweptEdit | None:
    if edit is None:
        return None
    if isinstance(edit, Mean | Resample):
        return edit
    named: dict[str, Mean | Resample] = {"mean": Mean(), "resample": Resample()}
    if isinstance(edit, str):
        if edit not in named:
            raise UsageError(f"{edit!r} is no edit by name: mean and resample are, others are made, as dj.zero().")
        return named[edit]
    return in_one_engine(as_edit(edit))


def axes_of(over: str | Sequence[str] | None, site: str) -> tuple[Any, ...]:
    """Return the named axes, by default those with stars in the site: `z.*[*]` is layers and heads."""
    if over is None:
        return _starred(site)
    names = tuple(name.strip() for name in (over.split(",") if isinstance(over, str) else over))
    strange = [name for name in names if name not in AXES]
    if strange or not 1 <= len(names) <= 4:
        raise UsageError(f"A sweep goes over one to four of {', '.join(AXES)}, not over {_spell(strange or names)}.")
    return names


def _spell(names: Sequence[str]) -> str:
    return ", ".join(names) or "nothing"


def _starred(site: str) -> tuple[str, ...]:
    stars = _STARS.match(site.strip())
    axes = []
    if stars is not None:
        unit = "head" if stars["point"] in HEAD_POINTS else "neuron"
        axes = ["point"] * (stars["point"] == "*") + ["layer"] * bool(stars["layer"]) + [unit] * bool(stars["units"])
    if not axes:
        raise UsageError(f"Say what is swept: over=(...) of {', '.join(AXES)}, or stars in the site, as in z.*[*].")
    return tuple(axes)


def windows_of(window: int | Mapping[str, int], axes: Sequence[str]) -> tuple[tuple[Any, int], ...]:
    """Return windows by axis; a plain number is for layers, or for positions where no layers are swept."""
    if isinstance(window, Mapping):
        return tuple((axis, int(size)) for axis, size in window.items() if axis in AXES or _no_window(axis))
    if window == 1:
        return ()
    axis = next((axis for axis in ("layer", "position") if axis in axes), None)
    if axis is None or window < 1:
        raise UsageError("A window counts layers or positions that the sweep goes over, from one on, as window=3.")
    return ((axis, int(window)),)


def _no_window(axis: str) -> bool:
    raise UsageError(f"A window is of layers or positions that the sweep goes over; {axis} is none of them.")


def metrics_of(metric: GivenMetric) -> tuple[str, ...]:
    """Return the metrics of the first pair. Raises UsageError."""
    if metric is None:
        raise UsageError("Give a metric, such as metric=\"logit(' Paris')\", or pairs that each have answers.")
    if isinstance(metric, PerPair):
        return metric.metrics[:1]
    texts = (metric,) if isinstance(metric, str) else tuple(metric)
    if not 1 <= len(texts) <= MOST_METRICS or len(set(texts)) < len(texts):
        raise UsageError(f"A sweep has from 1 to {MOST_METRICS} metrics, each once; this one has {len(texts)}.")
    return texts


def are_lines(given: object) -> bool:
    """Return whether it is a list of prompts and not one prompt."""
    if not isinstance(given, list | tuple):
        return False
    return any(isinstance(one, str | RemoteSession) or np.ndim(one) > 0 for one in given)


def require_texts(adapter: str | None, *lines: Any) -> None:
    """Raise UsageError where prompts are sessions, which have their own adapter or none, and an adapter is given."""
    each = [one for line in lines for one in (line if are_lines(line) else [line])]
    if adapter is not None and any(isinstance(one, RemoteSession) for one in each):
        raise UsageError(
            "A session's line is computed with the adapter that the session has: leave adapter out, or give the line's "
            "text or its tokens."
        )


def require_no_session(pairs: Iterable[tuple[object, object]]) -> None:
    """Raise UsageError where a prompt is a session, which other engines do not have."""
    if any(isinstance(line, RemoteSession) for pair in pairs for line in pair):
        raise UsageError("A session is at one engine, and pairs are spread over several; give its text or its tokens.")


def pairs_of(corrupted: Any, clean: Any) -> list[tuple[object, object]]:
    if clean is None:
        return [(line, None) for line in corrupted]
    if not (are_lines(corrupted) and are_lines(clean)) or len(corrupted) != len(clean):
        raise UsageError("Pairs are two lists of equally many lines: one clean line for each corrupted one.")
    return list(zip(corrupted, clean, strict=True))


# The common part of a sweep's pairs.

OnProgress = Callable[[Grid, int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedSweep:
    """A `request` without its prompts, whether metrics are an axis, the grid to continue (`so_far`), the `adapter` of
    prompts that are not sessions, and the metrics that belong to one pair each (`own`)."""

    request: Sweep
    several: bool
    on_progress: OnProgress | None
    so_far: Grid | None
    adapter: str | None = None
    own: PerPair | None = None

    @classmethod
    def of(cls, request: Sweep, metric: GivenMetric, **rest: Any) -> AskedSweep:
        """Return the sweep of a request with these metrics."""
        own = metric if isinstance(metric, PerPair) else None
        return cls(request=request, several=own is None and not isinstance(metric, str), own=own, **rest)

    def require_pairs(self, count: int | None, engines: int = 1) -> None:
        """Raise UsageError where so many pairs, or one prompt (None), do not match the metrics of pairs, or are not for
        so many engines."""
        if count is None and engines > 1:
            raise UsageError("beside spreads pairs over engines, and here is one line: leave it out, or give pairs.")
        if self.own is not None and count is None:
            raise UsageError("dj.per_pair has a metric for each pair: give lists of lines, or pairs; here is one line.")
        if self.own is not None and count is not None:
            self.own.require(count)

    def of_pair(self, number: int) -> AskedSweep:
        """Return the sweep of one pair, with its own metric if it has one."""
        metrics = self.request.metrics if self.own is None else (self.own.metrics[number],)
        return replace(self, request=msgspec.structs.replace(self.request, pair=number, metrics=metrics))

    def with_seed(self, seed: int) -> AskedSweep:
        return replace(self, request=msgspec.structs.replace(self.request, seed=seed))
