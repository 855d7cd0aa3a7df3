"""The engine double's values: those of a site, pooled for a view, and read through the lens."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from djinn_jupyter.api.arrays import from_numpy, to_numpy
from djinn_jupyter.wire import nouns, replies, requests
from djinn_jupyter.wire.sites import parse_site
from tests.widgets import samples
from tests.widgets.compared import apart, compared
from tests.widgets.pooled import heads_of, pooled


class Looked:
    _present: Callable[[str], replies.Paused]
    _site: Callable[[str], str]

    def _inspect(self, request: requests.Inspect) -> replies.Inspected:
        stop = self._present(request.session)
        site = stop.site if request.site is None else self._site(request.site)
        positions = tuple(stop.positions[p] if p < 0 else p for p in request.positions or stop.positions)
        count = len(positions)
        if parse_site(site).point == "pattern":
            weights = np.tril(np.ones((count, len(stop.positions)), dtype=np.float32))
            value = np.repeat((weights / weights.sum(-1, keepdims=True))[:, None], samples.HEADS, axis=1)
        else:
            value = samples.values(count, samples.WIDTH)
        snapshot = nouns.Snapshot(
            stop=stop.stop,
            site=site,
            value=from_numpy(value),
            axes="T H K" if value.ndim == 3 else "T D",
            positions=positions,
            dtype="float32",
            exactness="exact",
        )
        return replies.Inspected(snapshot=snapshot)

    def _readpooled(self, request: requests.ReadPooled) -> replies.Reply:
        seen = self._inspect(
            requests.Inspect(session=request.session, site=request.site, positions=request.positions)
        ).snapshot
        value = to_numpy(seen.value)
        last = from_numpy(value[-request.last :]) if request.last else None
        seen_from = {"site": seen.site, "axes": seen.axes, "stop": seen.stop}
        of_heads = heads_of(value, request) if request.heads else {}
        drawn = pooled(value, seen.positions, alone=request.alone, last=last, **seen_from, **of_heads)
        return replies.PooledRead(pooled=drawn)

    def _compare(self, request: requests.Compare) -> replies.Reply:
        stops = [self._present(name) for name in (request.session, request.other)]
        a, b = (samples.values(len(stop.positions), samples.WIDTH) for stop in stops)
        return compared(a, b, site=stops[0].site, apart=apart(a, b, last=request.last))

    def _lens(self, request: requests.Lens) -> replies.Reply:
        stop = self._present(request.session)
        positions = request.positions or stop.positions
        positions = [stop.positions[p] if p < 0 else p for p in positions]
        rows = samples.lens_rows(tuple(positions), stop.texts, request.top, request.tokens)
        return replies.LensRead(stop=stop.stop, site=request.site or stop.site, rows=rows)
