"""`dj.sweep`, its progress and interrupts, the confirmation of estimates, and the reproduction of grids."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, Literal, ParamSpec

import msgspec
import numpy as np

from djinn_jupyter.api import arrays, interrupts, likeness
from djinn_jupyter.api.arguments import checked_seed, typed
from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.api.result_files import Reproduction, bits, compared, naming_models
from djinn_jupyter.api.session import RemoteSession
from djinn_jupyter.errors import DjinnError, EngineUnavailable, SweepEnded, UsageError
from djinn_jupyter.link import channel, waiting
from djinn_jupyter.methods.common.api import (
    Question,
    SpreadResults,
    Tell,
    engines_of_one_model,
    line_source,
    require_all,
    spread,
)
from djinn_jupyter.methods.sweep.api import arguments
from djinn_jupyter.methods.sweep.api.arguments import OnProgress as OnProgress
from djinn_jupyter.methods.sweep.api.grid import (
    AT_ITS_END,
    Grid,
    continued,
    grid_of,
    nameless,
    noted,
    require_shape,
    unfinished,
    without_end,
)
from djinn_jupyter.methods.sweep.api.pair_metrics import GivenMetric
from djinn_jupyter.methods.sweep.request import (
    MOST_CHOSEN,
    CheckSweep,
    Confirmed,
    Noise,
    Recipe,
    Sweep,
    SweepProgressed,
    Swept,
)
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.nouns import AttentionName
from djinn_jupyter.wire.replies import Event

P = ParamSpec("P")
KEPT: Final = (
    "was interrupted, and the engine told to end it. The grid so far is `kept` of this error; the next cell has it as "
    "sys.last_value.kept."
)


def waits_for_grid(work: str) -> Callable[[Callable[P, Grid]], Callable[P, Grid]]:
    """Decorate a function so that it shows its progress; `work` begins a sentence. WorkInterrupted for an interrupt,
    with the grid so far."""

    def decorate(call: Callable[P, Grid]) -> Callable[P, Grid]:
        waited_for = interrupts.waits(work)(call)

        @functools.wraps(call)
        def whole_grid(*args: P.args, **kwargs: P.kwargs) -> Grid:
            grid = waited_for(*args, **kwargs)
            if grid.interrupted:
                raise interrupts.WorkInterrupted(f"{work} {KEPT}", grid)
            return grid

        return whole_grid

    return decorate


# `dj.sweep`: one edit at many places of a prompt, and its effect on a metric; over one pair of prompts, or many.

Pair = tuple[object, object]
MOST_SAMPLES: Final = 10_000


@waits_for_grid("The sweep")
@typed
def sweep(
    engine: RemoteEngine,
    *,
    corrupted: object = None,
    site: str,
    over: str | Sequence[str] | None = None,
    metric: GivenMetric = None,
    clean: object = None,
    pairs: object = None,
    edit: object = None,
    coefs: Sequence[float] = (),
    positions: object = None,
    align: object = None,
    window: int | Mapping[str, int] = 1,
    in_pairs: bool = False,
    noise: Noise | None = None,
    samples: int | None = None,
    mode: Literal["fast", "exact"] = "fast",
    seed: int = 0,
    so_far: Grid | None = None,
    adapter: str | None = None,
    beside: Sequence[RemoteEngine] = (),
    on_progress: OnProgress | None = None,
) -> Grid:
    """Return the metric of the prompt `corrupted` edited at every cell of `over` ("point", "layer", "position", "head",
    "neuron", "coef"), one cell at a time: patched with the value of `clean` there, or changed by an `edit` such as
    `dj.zero()`, "mean" (of all positions) or "resample" (another position's, drawn by the seed; of the clean prompt if
    given). Over "coef" the edit has each of `coefs` as its factor or coefficient. With `noise` the corrupted prompt is
    the clean one with noise on some positions, as in causal tracing; `samples` draws it several times, and the grid has
    them as pairs.

    A cell with a `window` of 3 is edited at its layer and the two after it together (at positions where no layers are
    swept, or by axis as {"layer": 3, "position": 2}); `in_pairs` edits two cells at once, and the grid has every axis
    twice. A star in the site is an axis, which `over` need not name: "z.*[*]" goes over layers and heads, "*.5" over
    the points of layer 5.

    `positions` limits the edit to positions named by number or by a token's text: [" Rome", -1], "2:5". For prompts of
    unequal length `align` names the corresponding positions to patch: names that both prompts have, as [" capital",
    -1], or tuples of the corrupted prompt's and the clean one's, as [(" Italy", " France")].

    A prompt is a text, token ids, or a session; equally long lists of prompts are pairs, and the grid has a first axis
    for them. `pairs` gives them one by one: (clean, corrupted), or the pathlib.Path of a file of them. A named
    `adapter` applies to prompts that are not sessions. With other engines of the model `beside` this one, each sweeps a
    pair at a time, and another takes the pair of a lost one; where they differ in threads or the like, a note says so.

    `site` is a point, as "resid_post" or "z", with a layer where `over` has none. `metric` is an expression of logit(),
    prob() and rank() at the last position, as "logit(' Rome') - logit(' Paris')"; with a list of them the grid has an
    axis for them, and `grid.of(metric)` is the grid of one. Each pair has its own with `dj.per_pair([...])`, or where
    `pairs` are objects with `clean`, `corrupted` and `answers`: a token, or the right and the wrong one, whose logits
    are subtracted. `fast` computes many cells in one pass and some of them again alone, chosen by `seed`; `exact`
    computes each alone. `on_progress` is called with the grid so far, and the finished and total number of cells. After
    an interrupt WorkInterrupted has the grid so far as `kept`; after a failure SweepEnded has it as `grid`. The same
    call with `so_far=grid` continues: finished cells are kept, and some of them are among those computed again alone.
    UsageError; UnknownSite; InvalidCondition.

    >>> grid = dj.sweep(
    ...     engine,
    ...     clean="The capital of France is",
    ...     corrupted="The capital of Italy is",
    ...     site="resid_post",
    ...     over=("layer", "position"),
    ...     metric="logit(' Paris') - logit(' Rome')",
    ... )
    >>> grid.values.shape, bool(grid.values[0, 3] > 0 > grid.corrupted)
    ((8, 5), True)
    """
    engines = engines_of_one_model(engine, beside)
    clean, corrupted, metric = arguments.lines_given(clean, corrupted, pairs, metric)
    request = arguments.cells_asked(
        site=site,
        over=over,
        metric=metric,
        edit=edit,
        positions=positions,
        align=align,
        window=window,
        in_pairs=in_pairs,
        seed=seed,
        noise=noise,
        coefs=tuple(coefs),
        mode=mode,
    )
    asked = arguments.AskedSweep.of(request, metric, on_progress=on_progress, so_far=so_far, adapter=adapter)
    if noise is not None:
        return _swept_in_noise(engines, asked, clean, corrupted, samples)
    if samples is not None:
        raise UsageError("Samples draw the noise so often: give it too, as noise=dj.noise('1:4').")
    if corrupted is None:
        raise UsageError("A sweep needs the line to edit, as corrupted=..., or noise.")
    return _swept_lines(engines, asked, corrupted, clean)


def swept(
    engine: RemoteEngine,
    request: Sweep,
    corrupted: object,
    clean: object,
    *,
    metric: GivenMetric,
    on_progress: OnProgress | None,
    so_far: Grid | None,
    adapter: str | None = None,
    beside: Sequence[RemoteEngine] = (),
) -> Grid:
    """Return the grid of a `request` without its prompts, over one pair of prompts or many, continuing `so_far`."""
    asked = arguments.AskedSweep.of(request, metric, on_progress=on_progress, so_far=so_far, adapter=adapter)
    return _swept_lines(engines_of_one_model(engine, beside), asked, corrupted, clean)


def swept_again(
    engine: RemoteEngine,
    made: Sequence[Recipe],
    before: Grid,
    on_progress: OnProgress | None,
    beside: Sequence[RemoteEngine] = (),
) -> Grid:
    """Return the grid of the sweeps that made `before`, computed again from its first cell."""

    def sweep_of_a_pair(engine: RemoteEngine, number: int) -> _Sweep:
        request, attention = made[number].asked, made[number].attention
        likeness.require_modules(engine.channel, made[number].modules)
        adapter = likeness.same_adapter(engine.channel, made[number].adapter)
        asked = arguments.AskedSweep(
            request=request, several=before.several, on_progress=on_progress, so_far=None, adapter=adapter
        )
        return _Sweep(engine, asked, pair=request.pair, attention=attention)

    lines = [(one.asked.corrupted, one.asked.clean) for one in made]
    if before.paired:
        return _swept_pairs(engines_of_one_model(engine, beside), lines, sweep_of_a_pair)
    return sweep_of_a_pair(engine, 0).of(*lines[0])


def _swept_lines(
    engines: Sequence[RemoteEngine], asked: arguments.AskedSweep, corrupted: object, clean: object
) -> Grid:
    arguments.require_texts(asked.adapter, corrupted, clean)
    if not (arguments.are_lines(corrupted) or arguments.are_lines(clean)):
        asked.require_pairs(None, len(engines))
        return _Sweep(engines[0], asked).of(corrupted, clean)
    pairs = arguments.pairs_of(corrupted, clean)
    asked.require_pairs(len(pairs))
    return _swept_pairs(engines, pairs, lambda engine, number: _Sweep(engine, asked.of_pair(number), pair=number))


def _swept_in_noise(
    engines: Sequence[RemoteEngine], asked: arguments.AskedSweep, clean: object, corrupted: object, samples: int | None
) -> Grid:
    """Sweep a prompt in noise, drawn once or `samples` times by consecutive seeds."""
    if clean is None or corrupted is not None or arguments.are_lines(clean):
        raise UsageError("A sweep in noise takes one clean line, which it spoils, and no corrupted one.")
    asked.require_pairs(None, len(engines) if samples is None else 1)
    if samples is None:
        return _Sweep(engines[0], asked).of(clean, clean)
    if not 1 <= samples <= MOST_SAMPLES:
        raise UsageError(f"A sweep in noise draws 1 to {MOST_SAMPLES:,} samples, not {samples:,}.")
    first = asked.request.seed
    checked_seed(first + samples - 1)
    return _swept_pairs(
        engines,
        [(clean, clean)] * samples,
        lambda engine, number: _Sweep(engine, asked.with_seed(first + number), pair=number),
    )


def _swept_pairs(
    engines: Sequence[RemoteEngine], pairs: Sequence[Pair], sweep_of_a_pair: Callable[[RemoteEngine, int], _Sweep]
) -> Grid:
    """Sweep one pair after the other; with several engines, one at each. An interrupt ends this with the present
    pair."""
    if len(engines) > 1:
        arguments.require_no_session(pairs)
        require_all(engines, "sweep", lambda engine: sweep_of_a_pair(engine, 0).question(*pairs[0]))
        pieces = [_PairOfMany(number, pair, sweep_of_a_pair) for number, pair in enumerate(pairs)]
        return grid_of(spread(engines, pieces), len(pairs), several=sweep_of_a_pair(engines[0], 0).asked.several)
    found: dict[int, Swept] = {}
    ended: DjinnError | None = None
    met: int | None = None  # the pair in progress at an interrupt
    for number, pair in enumerate(pairs):
        one = sweep_of_a_pair(engines[0], number)
        one.of_pair = f"pair {number + 1} of {len(pairs)}"
        waiting.far(one.of_pair)
        try:
            [reply] = one.of(*pair).replies
            require_shape(reply, [*found.values()])
        except KeyboardInterrupt:
            met = number
            break
        except DjinnError as error:
            ended = error
            break
        found[number] = reply
        if one.interrupted:
            met = number
            found[number] = without_end(reply) if number + 1 < len(pairs) else reply
            break
    failed = None if ended is None else len(found)
    outcome = SpreadResults(found=found, error=ended, failed=failed, interrupted=met is not None, lost=())
    return grid_of(outcome, len(pairs), several=one.asked.several, met=met)


@dataclass(slots=True, eq=False)
class _PairOfMany:
    """A pair that any free engine sweeps."""

    number: int
    lines: Pair
    sweep_of_a_pair: Callable[[RemoteEngine, int], _Sweep]
    under_way: _Sweep | None = None

    def run(self, engine: RemoteEngine, tell: Tell) -> Swept:
        self.under_way = self.sweep_of_a_pair(engine, self.number).telling(tell)
        try:
            [reply] = self.under_way.of(*self.lines).replies
        except SweepEnded as ended:
            if isinstance(ended.__cause__, EngineUnavailable):  # another engine computes the whole pair
                raise ended.__cause__ from ended
            raise
        return reply

    def end(self) -> None:
        if self.under_way is not None and self.under_way.session is not None:
            self.under_way.engine.channel.ask(ask.Close(session=self.under_way.session))


@dataclass(slots=True)
class _Sweep:
    """One sweep, in a session of its own while it runs; closing that session ends it. `pair` is its number. Its passes
    compute the `attention` of the prompts' sessions, or this one."""

    engine: RemoteEngine
    asked: arguments.AskedSweep
    pair: int = 0
    of_pair: str | None = None
    attention: AttentionName | None = None
    cells: dict[int, tuple[float, ...]] = field(default_factory=dict)
    places: tuple[tuple[Any, ...], ...] = ()
    unedited: tuple[float, ...] = ()
    recipe: str = ""
    told: bool = False  # cells that this sweep finished
    done: int = 0  # finished cells at its last report
    interrupted: bool = False
    session: str | None = None  # once it is open

    def telling(self, tell: Tell) -> _Sweep:
        """Return the sweep with its progress shown by another thread."""
        show = self.asked.on_progress
        if show is not None:

            def told(grid: Grid, done: int, total: int) -> None:
                tell(lambda: show(grid, done, total))

            self.asked = replace(self.asked, on_progress=told)
        return self

    def of(self, corrupted: object, clean: object) -> Grid:
        asked = self._of_lines(corrupted, clean)
        grid: Grid | None = None
        try:
            with likeness.temporary_session(self.engine.channel, "sweep", self.asked.adapter) as session:
                self.session = session
                if self.attention is not None:
                    RemoteSession(self.engine.channel, session).attend(self.attention)
                grid = self._run(session, self._continued(msgspec.structs.replace(asked, session=session)))
        except KeyboardInterrupt:  # while the session closes: the computed cells are there
            if grid is None:
                raise
            self.interrupted = True
            grid = Grid([noted(grid.replies[0], AT_ITS_END)], several=self.asked.several, interrupted=True)
        return grid

    def question(self, corrupted: object, clean: object) -> Question:
        """Return the question whether the engine would begin this sweep."""
        request = self._continued(self._of_lines(corrupted, clean))
        return Question(request=request, check=CheckSweep, adapter=self.asked.adapter)

    def _of_lines(self, corrupted: object, clean: object) -> Sweep:
        source = None if clean is None else line_source(self.engine, clean)
        lines: dict[str, Any] = {"corrupted": line_source(self.engine, corrupted), "clean": source}
        return msgspec.structs.replace(self.asked.request, pair=self.pair, **lines)

    def _continued(self, request: Sweep) -> Sweep:
        """Return the request with the finished cells, which the new grid has from the beginning."""
        before = self.asked.so_far
        if before is None or self.pair >= len(before.replies):
            return request
        reply = before.replies[self.pair]
        kept = continued(reply)
        self.places, self.recipe = reply.places, reply.recipe
        self.unedited = tuple(
            one.corrupted if reply.into == "corrupted" else math.nan if one.clean is None else one.clean
            for one in reply.measured
        )
        self.cells.update(zip(kept.cells, kept.values, strict=True))
        self.done = len(kept.cells)
        return msgspec.structs.replace(request, continued=kept)

    def _run(self, session: str, request: Sweep) -> Grid:
        with channel.followed(self.engine.channel, session, request) as under_way:
            try:
                self._note(under_way.events())
                return Grid([nameless(under_way.reply.result())], several=self.asked.several)
            except KeyboardInterrupt:
                if not self.places:
                    raise
                self.interrupted = True
                return self._so_far("it was interrupted")
            except DjinnError as error:
                if not self.told:
                    raise
                said = f"{len(self.cells)} cells were finished: {error}"
                raise SweepEnded(f"The sweep ended before its last cell; {said}", self._so_far(str(error))) from error

    def _note(self, events: Iterable[Event]) -> None:
        """Record the reported finished cells."""
        for event in events:
            if not isinstance(event, SweepProgressed):
                continue
            self.places, self.unedited, self.recipe = event.places, event.unedited, event.recipe
            self.told = True
            if event.done < self.done:  # the engine rejects its earlier cells, and starts again
                self.cells.clear()
            self.done = event.done
            self.cells.update(zip(event.cells, event.values, strict=True))
            waiting.far(f"{event.done:,} of {event.total:,} cells" + (f" of {self.of_pair}" if self.of_pair else ""))
            if self.asked.on_progress is not None:
                self.asked.on_progress(self._so_far("it is under way"), event.done, event.total)

    def _so_far(self, why: str) -> Grid:
        note = f"The sweep is not whole: {why.removesuffix('.')}."
        return unfinished(
            self.places,
            self.cells,
            asked=self.asked.request,
            unedited=self.unedited,
            note=note,
            several=self.asked.several,
            interrupted=self.interrupted,
            recipe=self.recipe,
        )


# The strongest cells of an attribution, also computed by an exact sweep: their choice, and both side by side.

UNCONFIRMED: Final = "The estimates are whole; the exact sweep ended before the last cell that it was to confirm."


def require_confirmable(top: int | None, clean: object, edit: object) -> None:
    """Raise UsageError for an invalid number of cells to confirm."""
    if top is not None and not 1 <= top <= MOST_CHOSEN:
        raise UsageError(f"From 1 to {MOST_CHOSEN:,} of the strongest cells are computed exactly, not {top:,}.")
    if top is not None and clean is None and edit is None:
        raise UsageError(
            "Gradient x activation is the estimate of no sweep, so none confirms it: give a clean line, or an edit "
            "such as dj.zero()."
        )


def strongest(scores: Grid, count: int) -> tuple[int, ...]:
    """Return the cells with the scores of largest magnitude, as many for each metric, numbered row by row; for pairs by
    the mean."""
    mean = scores.values.mean(axis=0) if scores.paired else scores.values
    each = np.abs(mean).reshape(len(scores.metrics), -1)
    if scores.in_pairs:  # a pair of cells once
        each = np.where(np.tri(int(each.shape[1] ** 0.5), k=-1, dtype=bool).reshape(1, -1), -1.0, each)
    found = np.argsort(-each, axis=1, kind="stable")[:, :count]
    return tuple(sorted({int(cell) for metric, cells in enumerate(found) for cell in cells if each[metric, cell] >= 0}))


def confirmed(
    engine: RemoteEngine,
    scores: Grid,
    cells: tuple[int, ...],
    on_progress: OnProgress | None = None,
    beside: Sequence[RemoteEngine] = (),
) -> Grid:
    """Return an attribution with these cells computed by an exact sweep of the same prompts, edit and metrics. An
    interrupt keeps what was computed. Raises SweepEnded, which has the scores, where the sweep fails."""
    made = [_exact(one.made, cells) for one in scores.replies if one.made is not None]
    try:
        exact = swept_again(engine, made, scores, on_progress, beside)
    except DjinnError as error:
        part = error.grid.replies if isinstance(error, SweepEnded) and isinstance(error.grid, Grid) else ()
        said = f"The attribution is whole, and the sweep that was to confirm it ended: {error}"
        raise SweepEnded(said, _beside(scores, part, cells, interrupted=True)) from error
    except KeyboardInterrupt:
        return _beside(scores, (), cells, interrupted=True)
    return _beside(scores, exact.replies, cells, interrupted=exact.interrupted)


def confirmed_again(engine: RemoteEngine, again: Grid, before: Grid, on_progress: OnProgress | None) -> Grid:
    """Return a recomputed grid with the same cells confirmed as before."""
    kept = before.replies[0].confirmed
    if kept is None or again.interrupted or not again.is_whole:
        return again
    return confirmed(engine, again, kept.cells, on_progress)


def _exact(made: Recipe, cells: tuple[int, ...]) -> Recipe:
    asked = msgspec.structs.replace(made.asked, estimate=None, mode="exact", chosen=cells)
    return msgspec.structs.replace(made, asked=asked)


def _beside(scores: Grid, exact: Sequence[Swept], cells: tuple[int, ...], *, interrupted: bool) -> Grid:
    each = [_with(one, exact[at] if at < len(exact) else None, cells) for at, one in enumerate(scores.replies)]
    if interrupted:
        each[-1] = msgspec.structs.replace(each[-1], notes=(*each[-1].notes, UNCONFIRMED))
    return Grid(each, paired=scores.paired, several=scores.several, interrupted=interrupted)


def _with(scores: Swept, exact: Swept | None, cells: tuple[int, ...]) -> Swept:
    """Return scores with the changes that an exact sweep found in these cells, and its notes."""
    if exact is None:
        return scores
    each = [arrays.to_numpy(one.values).reshape(-1)[list(cells)] - one.corrupted for one in exact.measured]
    changes: np.ndarray[Any, Any] = np.stack(each, axis=-1)
    there = [(cell, tuple(row)) for cell, row in zip(cells, changes.tolist(), strict=True) if not np.isnan(row).any()]
    kept = Confirmed(cells=tuple(cell for cell, _ in there), changes=tuple(row for _, row in there))
    notes = tuple(dict.fromkeys((*scores.notes, *exact.notes)))
    return msgspec.structs.replace(scores, confirmed=kept, notes=notes)


def reproduced_grid(engine: RemoteEngine, kept: Grid, on_progress: OnProgress | None) -> Reproduction:
    """Compute a grid again, and compare. UsageError for an incomplete one; errors as in `dj.sweep`; WorkInterrupted."""
    made = _made(kept)
    with naming_models("grid", made[0].by, engine.description, refused="compute"):
        again = confirmed_again(engine, swept_again(engine, made, kept, on_progress), kept, on_progress)
    if not again.is_whole or again.interrupted:
        raise interrupts.WorkInterrupted(
            "The reproduction was interrupted, and nothing is known of the cells that follow.", again
        )
    return compared_grids(kept, again)


def _made(grid: Grid) -> list[Recipe]:
    """Return the recipe of each pair. Raises UsageError where one is incomplete."""
    found = [one.made for one in grid.replies if one.made is not None]
    if not grid.is_whole or len(found) < len(grid.replies):
        raise UsageError(
            "This grid is not whole, so it cannot be computed again as it was; finish it first, with so_far=grid."
        )
    return found


def compared_grids(kept: Grid, again: Grid) -> Reproduction:
    """Return the differences between a grid and its recomputation."""
    if kept.values.shape != again.values.shape:
        raise UsageError(
            f"The grid has {' x '.join(map(str, kept.values.shape))} cells, and computed again "
            f"{' x '.join(map(str, again.values.shape))}: the model has other layers, heads or neurons."
        )
    return compared(
        kept,
        again,
        lambda at: {axis: along[index] for axis, along, index in zip(kept.over, kept.places(), at, strict=True)},
        origins=(_made(kept)[0].by, _made(again)[0].by),
        notes=partial(_notes, kept, again),
        differs=_differs(kept, again),
    )


def _differs(kept: Grid, again: Grid) -> str:
    """Return what has other bits besides the values; empty where everything is the same."""
    if not _same_confirmed(kept, again):
        return "the cells that were computed exactly"
    same = all(np.array_equal(bits(_lines(kept, of)), bits(_lines(again, of))) for of in ("corrupted", "clean"))
    return "" if same else "the metrics of the unedited lines"


def _same_confirmed(kept: Grid, again: Grid) -> bool:
    """True where the exactly computed cells of an attribution have the same bits, or there are none."""
    one, other = kept.confirmed, again.confirmed
    if one is None or other is None:
        return one is other
    return np.array_equal(bits(one), bits(other))


def _lines(grid: Grid, of: str) -> np.ndarray[Any, Any]:
    """Return the metrics of an unedited prompt, NaN without one."""
    found = [getattr(measured, of) for reply in grid.replies for measured in reply.measured]
    return np.array([np.nan if value is None else value for value in found], dtype=np.float64)


def _notes(kept: Grid, again: Grid, same: bool) -> list[str]:
    notes = []
    if kept.texts != again.texts:
        notes.append("The tokens have other texts: the tokenizer is another one.")
    if kept.mode != again.mode:
        notes.append(f"The mode was {kept.mode}, and is {again.mode} now.")
    before = sum(one.kept for one in _made(kept))
    if before and not same:
        notes.append(f"{before:,} of its cells came from a sweep that was cut short, and shared passes with others.")
    if not same and [one.asked.calls for one in _made(kept)] != [one.asked.calls for one in _made(again)]:
        notes.append(
            "Other cells shared a pass than then, for passes took longer or found less memory: the last bits of fast "
            'cells may differ by that, those of mode="exact" may not.'
        )
    return notes
