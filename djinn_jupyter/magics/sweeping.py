"""Sweeps: one edit at many places of the present line, shown as a heatmap that fills while it is computed."""

from __future__ import annotations

import time
from argparse import Namespace
from typing import TYPE_CHECKING, Any

from IPython.core.magic import magics_class

from djinn_jupyter.errors import SweepEnded, UsageError
from djinn_jupyter.magics.editing import parse_edit
from djinn_jupyter.magics.lazily import sweeping, views
from djinn_jupyter.magics.parsing import KEEP, SESSION, Group, given, option, unquoted, verb, words_of

if TYPE_CHECKING:
    from djinn_jupyter.client.grid import Grid
    from djinn_jupyter.client.patches import Patch
    from djinn_jupyter.wire.edits import Edit
    from djinn_jupyter.wire.sweeps import Noise

DRAWN_SECONDS = 0.25


@magics_class
class SweepingMagics(Group):
    @verb(
        option("site", help="a point such as resid_post or z, with a layer where --over has none: mlp_out.4"),
        option("--over", default="layer,position", help="layer, position, head, coef; default layer,position"),
        option(
            "--from",
            dest="clean",
            metavar="NAME",
            help="the clean line: a session, or a variable with a text or token ids; its values are patched in",
        ),
        option("--metric", type=unquoted, metavar="EXPR", help="such as \"logit(' Mary') - logit(' John')\""),
        option("--edit", type=unquoted, metavar="EDIT", help='instead of patching: zero, mean, resample, "scale 0.5"'),
        option(
            "--coefs",
            type=unquoted,
            metavar="LIST",
            help="for --over coef: 0,0.5,1 in place of the edit's own coefficient",
        ),
        option(
            "--noise",
            type=unquoted,
            metavar="POSITIONS",
            help="patch the present line back into itself with noise there, as in causal tracing: 1:4",
        ),
        option("--noise-scale", type=float, help="of the noise, in standard deviations of the line; default 3"),
        option("--samples", type=int, help="draw the noise so often; the picture is the mean"),
        option("--exact", action="store_true", help="compute each cell alone, bit for bit as by hand"),
        option("--seed", type=int, help="chooses the cells that are computed again alone; default 0"),
        option("--hover", action="store_true", help="a plotly figure below, to read values under the pointer"),
        KEEP,
        SESSION,
        literal=True,
    )
    def djinn_sweep(self, args: Namespace) -> None:
        """Sweep one edit over layers, positions or heads of the present line, and draw what it does to a metric."""
        if args.metric is None:
            raise UsageError("A sweep needs a metric: --metric \"logit(' Mary') - logit(' John')\".")
        noise = self._noise(args)
        session, drawing = self.state.session(args.session), _Drawing(self.state.screen)
        try:
            grid = sweeping.sweep(
                self.state.engine,
                corrupted=session if noise is None else None,
                clean=session if noise is not None else None if args.clean is None else self._line(args.clean),
                noise=noise,
                samples=args.samples,
                coefs=_numbers(args.coefs),
                site=args.site,
                over=args.over,
                metric=args.metric,
                edit=None if args.edit is None else self._edit(args.edit),
                mode="exact" if args.exact else "fast",
                on_progress=drawing.draw,
                **given(seed=args.seed),
            )
        except SweepEnded as ended:
            self.state.keep(args.keep, ended.grid)
            drawing.end(ended.grid, hover=False)
            raise
        self.state.keep(args.keep, grid)
        drawing.end(grid, hover=args.hover)

    def _noise(self, args: Namespace) -> Noise | None:
        if args.noise is None:
            if args.samples is not None or args.noise_scale is not None:
                raise UsageError("--samples and --noise-scale are of the noise: add --noise POSITIONS.")
            return None
        if args.clean is not None:
            raise UsageError("--noise patches from the present line itself: leave --from out.")
        return sweeping.noise(args.noise, **given(scale=args.noise_scale))

    def _edit(self, text: str) -> Edit | Patch | str:
        if text.strip() in ("mean", "resample"):
            return text.strip()
        return parse_edit(self.state, words_of(text, posix=True), Namespace())

    def _line(self, name: str) -> object:
        """Return what --from names: a variable of this notebook, or a session."""
        there = self.state.shell.user_ns.get(name)
        return there if there is not None and not callable(there) else self.state.find(name)


def _numbers(text: str | None) -> list[float]:
    try:
        return [] if text is None else [float(part) for part in text.split(",")]
    except ValueError:
        raise UsageError(f"--coefs is a list of numbers, as 0,0.5,1; {text!r} is none.") from None


class _Drawing:
    """One display: the cells so far, a few times a second, and the whole grid at the end."""

    def __init__(self, screen: Any) -> None:
        self._screen = screen
        self._handle: Any = None
        self._drawn = 0.0

    def draw(self, grid: Grid, done: int, total: int) -> None:
        if self._screen.is_static or time.monotonic() - self._drawn < DRAWN_SECONDS:
            return
        self._drawn = time.monotonic()
        self._show(views.grid_view(grid))

    def end(self, grid: Grid, *, hover: bool) -> None:
        view = views.grid_view(grid, hover=hover)
        if self._handle is None:
            self._screen.show(view)
            return
        self._show(view.card())
        figure = view.figure()
        if figure is not None:
            self._screen.show_live(figure)

    def _show(self, view: Any) -> None:
        if self._handle is None:
            self._handle = self._screen.show_live(view)
        else:
            self._handle.update(view)
