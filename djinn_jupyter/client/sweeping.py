"""`dj.sweep`: one edit at many places of a line, and its effect on a metric; over one pair of lines, or many."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Any, Final, Literal

import msgspec

from djinn_jupyter.client.arrays import token_ids
from djinn_jupyter.client.connection.channel import expect
from djinn_jupyter.client.edits import as_edit
from djinn_jupyter.client.engine import RemoteEngine
from djinn_jupyter.client.grid import Grid, unfinished
from djinn_jupyter.client.patches import in_one_engine
from djinn_jupyter.client.positions import Positions, spell_positions
from djinn_jupyter.client.session import RemoteSession
from djinn_jupyter.client.temporary import temporary_session
from djinn_jupyter.errors import DjinnError, SweepEnded, UsageError
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.replies import SweepProgressed, Swept
from djinn_jupyter.wire.sweeps import Mean, Noise, Resample, SweptEdit

OnProgress = Callable[[Grid, int, int], None]
REPLIED: Final = "replied"
FIELDS: Final = ("site", "over", "metric", "edit", "noise", "coefs", "mode", "seed")


def sweep(
    engine: RemoteEngine,
    *,
    corrupted: object = None,
    site: str,
    over: str | Sequence[str],
    metric: str,
    clean: object = None,
    edit: object = None,
    coefs: Sequence[float] = (),
    noise: Noise | None = None,
    samples: int | None = None,
    mode: Literal["fast", "exact"] = "fast",
    seed: int = 0,
    on_progress: OnProgress | None = None,
) -> Grid:
    """Return the metric of the line `corrupted` edited at every cell of `over` ("layer", "position", "head", "coef"),
    one cell at a time: patched with the value of `clean` there, or changed by an `edit` such as `dj.zero()`, "mean" (of
    all positions) or "resample" (another position's, drawn by the seed; of the clean line where there is one). Over
    "coef" the edit has each of `coefs` as its factor or coefficient. With `noise` the corrupted line is the clean one
    with noise on some positions, as in causal tracing; `samples` draws it as often, and the grid has them as pairs.

    A line is a text, one prompt's token ids, or a session; equally long lists of lines are pairs, and the grid has a
    first axis for them. `site` is a point, as "resid_post" or "z", with a layer where `over` has none. `metric` is an
    expression of logit(), prob() and rank() at the last position, as "logit(' Rome') - logit(' Paris')". `fast`
    computes many cells in one pass and some of them again alone, chosen by `seed`; `exact` computes each alone.
    `on_progress` is called with the grid so far, and with how many of how many cells are done. An interrupt returns the
    grid so far; SweepEnded, where a sweep fails on the way, has it as `grid`."""
    request = ask.Sweep(
        session="sweep",
        corrupted=(0,),
        site=site,
        over=_axes(over),
        metric=metric,
        edit=_swept_edit(edit),
        noise=noise,
        coefs=tuple(map(float, coefs)),
        mode=mode,
        seed=seed,
    )
    if noise is not None:
        return _swept_in_noise(engine, request, clean, corrupted, samples, on_progress)
    if samples is not None:
        raise UsageError("Samples draw the noise so often: give it too, as noise=dj.noise('1:4').")
    if corrupted is None:
        raise UsageError("A sweep needs the line to edit, as corrupted=..., or noise.")
    if not (_are_lines(corrupted) or _are_lines(clean)):
        return _Sweep(engine, request, on_progress).of(corrupted, clean)
    return _swept_pairs(_pairs(corrupted, clean), lambda: _Sweep(engine, request, on_progress))


def noise(positions: Positions, scale: float = 3.0) -> Noise:
    """Noise on what enters the first layer at these positions, of `scale` times the line's standard deviation there."""
    return Noise(positions=spell_positions(positions, _no_ends) or (), scale=float(scale))


def _no_ends() -> tuple[int, int]:
    raise UsageError("Noise needs both ends of a slice of positions: write '2:5'.")


def _swept_edit(edit: object) -> SweptEdit | None:
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


def _swept_in_noise(
    engine: RemoteEngine,
    request: ask.Sweep,
    clean: object,
    corrupted: object,
    samples: int | None,
    on_progress: OnProgress | None,
) -> Grid:
    """Sweep a line in noise, drawn once or `samples` times by the seeds that follow."""
    if clean is None or corrupted is not None or _are_lines(clean):
        raise UsageError("A sweep in noise takes one clean line, which it spoils, and no corrupted one.")
    if samples is None:
        return _Sweep(engine, request, on_progress).of(clean, clean)
    if samples < 1:
        raise UsageError("A sweep in noise needs at least one sample.")
    seeds = iter(range(request.seed, request.seed + samples))
    return _swept_pairs(
        [(clean, clean)] * samples,
        lambda: _Sweep(engine, msgspec.structs.replace(request, seed=next(seeds)), on_progress),
    )


def _swept_pairs(pairs: Sequence[tuple[object, object]], sweep_of_a_pair: Callable[[], _Sweep]) -> Grid:
    """Sweep one pair after the other. An interrupt ends this with the pair that it meets."""
    found: list[Swept] = []
    for pair in pairs:
        one = sweep_of_a_pair()
        try:
            [reply] = one.of(*pair).replies
            _require_shape(reply, found)
        except (DjinnError, KeyboardInterrupt) as error:
            part = error.grid.replies if isinstance(error, SweepEnded) and isinstance(error.grid, Grid) else ()
            if not (found or part):
                raise
            why = f"The sweep ended in pair {len(found)}: {error or 'it was interrupted'}"
            raise SweepEnded(why, Grid([*found, *part], paired=True)) from error
        found.append(reply)
        if one.interrupted:
            break
    return Grid(found, paired=True)


def _require_shape(reply: Swept, before: Sequence[Swept]) -> None:
    if before and reply.values.shape != before[0].values.shape:
        raise UsageError(
            f"its cells are {list(reply.values.shape)}, and the first pair's {list(before[0].values.shape)}; "
            "pairs swept over positions need equally many tokens."
        )


def _axes(over: str | Sequence[str]) -> tuple[Any, ...]:
    names = tuple(name.strip() for name in (over.split(",") if isinstance(over, str) else over))
    strange = [name for name in names if name not in ("layer", "position", "head", "coef")]
    if strange or not 1 <= len(names) <= 4:
        raise UsageError(
            f"A sweep goes over layer, position, head and coef, not over {', '.join(strange) or 'nothing'}."
        )
    return names


def _are_lines(given: object) -> bool:
    """Return whether it is a list of lines and not one line."""
    import numpy as np

    if not isinstance(given, list | tuple):
        return False
    return any(isinstance(one, str | RemoteSession) or np.ndim(one) > 0 for one in given)


def _pairs(corrupted: Any, clean: Any) -> list[tuple[object, object]]:
    if clean is None:
        return [(line, None) for line in corrupted]
    if not (_are_lines(corrupted) and _are_lines(clean)) or len(corrupted) != len(clean):
        raise UsageError("Pairs are two lists of equally many lines: one clean line for each corrupted one.")
    return list(zip(corrupted, clean, strict=True))


@dataclass(slots=True)
class _Sweep:
    """One sweep, in a session of its own for as long as it runs; closing that session ends it."""

    engine: RemoteEngine
    request: ask.Sweep
    on_progress: OnProgress | None
    cells: dict[int, float] = field(default_factory=dict)
    shape: tuple[int, ...] = ()
    corrupted: float = math.nan
    interrupted: bool = False

    def of(self, corrupted: object, clean: object) -> Grid:
        fields = {name: getattr(self.request, name) for name in FIELDS}
        lines = {"corrupted": self._line(corrupted), "clean": None if clean is None else self._line(clean)}
        with temporary_session(self.engine.channel, "sweep") as session:
            return self._run(session, ask.Sweep(session=session, **fields, **lines))

    def _line(self, given: object) -> Any:
        if isinstance(given, RemoteSession):
            return given.name
        return self.engine.tokenize(given).tokens if isinstance(given, str) else token_ids(given)

    def _run(self, session: str, request: ask.Sweep) -> Grid:
        feed: SimpleQueue[Any] = SimpleQueue()
        forget = self.engine.channel.listen(session, feed.put)
        try:
            reply = self.engine.channel.ask(request)
            reply.add_done_callback(lambda _: feed.put(REPLIED))
            self._follow(feed)
            return Grid([expect(reply.result(), Swept)])
        except KeyboardInterrupt:
            if not self.shape:
                raise
            self.interrupted = True
            return self._so_far("it was interrupted")
        except DjinnError as error:
            self._drain(feed)
            if not self.cells:
                raise
            said = f"{len(self.cells)} cells were finished: {error}"
            raise SweepEnded(f"The sweep ended before its last cell; {said}", self._so_far(str(error))) from error
        finally:
            forget()

    def _follow(self, feed: SimpleQueue[Any]) -> None:
        """Note finished cells until the reply is there."""
        while (item := self.engine.channel.take(feed, None)) != REPLIED:
            self._note(item)

    def _drain(self, feed: SimpleQueue[Any]) -> None:
        while True:
            try:
                self._note(feed.get_nowait())
            except Empty:
                return

    def _note(self, item: object) -> None:
        if not isinstance(item, SweepProgressed):
            return
        self.shape, self.corrupted = item.shape, item.corrupted
        self.cells.update(zip(item.cells, item.values, strict=True))
        if self.on_progress is not None:
            self.on_progress(self._so_far("it is under way"), item.done, item.total)

    def _so_far(self, why: str) -> Grid:
        asked = self.request
        note = f"The sweep is not whole: {why}."
        return unfinished(
            self.shape,
            self.cells,
            corrupted=self.corrupted,
            site=asked.site,
            over=asked.over,
            metric=asked.metric,
            mode=asked.mode,
            seed=asked.seed,
            coefs=asked.coefs,
            note=note,
        )
