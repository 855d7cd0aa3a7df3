"""Sweeps: one edit at many places of the present tokens, as a heatmap that fills during the computation."""

from __future__ import annotations

import re
from argparse import Namespace
from collections.abc import Callable
from typing import Any, Final

from IPython.core.magic import magics_class

from djinn_jupyter.api import interrupts, patches
from djinn_jupyter.errors import SweepEnded, UsageError
from djinn_jupyter.magics import editing, screen
from djinn_jupyter.magics.kernel_state import KernelState
from djinn_jupyter.magics.parsing import (
    ADAPTER,
    BESIDE,
    HOVER,
    KEEP,
    METRICS,
    SAVE,
    SESSION,
    SO_FAR,
    Group,
    given,
    numbers_of,
    option,
    unquoted,
    verb,
    words_of,
)
from djinn_jupyter.methods.common.magic import A_LINE, PAIRS, engines_beside, from_line, prompts_of
from djinn_jupyter.methods.sweep import card, request
from djinn_jupyter.methods.sweep.api import arguments, sweeping
from djinn_jupyter.methods.sweep.api.grid import Grid
from djinn_jupyter.methods.sweep.api.sweeping import OnProgress
from djinn_jupyter.wire.edits import Edit

_NAME = r"""\s*(?:'[^']*'|"[^"]*"|-?\d+(?::-?\d+)?)\s*"""
_ALIGNED = re.compile(rf"{_NAME}(?:={_NAME})?(?:,{_NAME}(?:={_NAME})?)*")
_SIDES = re.compile(rf"({_NAME})(?:=({_NAME}))?(?:,|$)")

SITE: Final = option(
    "site", help="a point such as resid_post, with a layer where --over has none: mlp_out.4; stars are axes: z.*[*]"
)
CELLS: Final = (
    METRICS,
    option("--edit", type=unquoted, metavar="EDIT", help='instead of patching: zero, mean, resample, "scale 0.5"'),
    option("--positions", type=unquoted, metavar="P", help="at these alone: 2:5,-1, last, or a token's text"),
    option(
        "--align",
        type=unquoted,
        metavar="LIST",
        help="lines of unequal length: what corresponds, present=clean: \"' capital', -1, ' Italy'=' France'\"",
    ),
    PAIRS,
    option("--window", metavar="N", help="so many layers together, from the cell's on; position=2 is positions"),
    option("--pairs", dest="in_pairs", action="store_true", help="two cells at once: every pair of cells"),
)


@magics_class
class SweepingMagics(Group):
    @verb(
        SITE,
        option("--over", help=f"of {', '.join(arguments.AXES)}; default the site's stars, else layer,position"),
        from_line("clean", f"the clean line: {A_LINE}; its values are patched in"),
        *CELLS,
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
        ADAPTER,
        BESIDE,
        HOVER,
        SAVE,
        SO_FAR,
        KEEP,
        SESSION,
    )
    def djinn_sweep(self, args: Namespace) -> None:
        """Sweep one edit over layers, positions or heads of the present tokens, and draw its effect on a metric."""
        if not (args.metrics or args.prompts):
            raise UsageError("A sweep needs a metric: --metric \"logit(' Mary') - logit(' John')\".")
        noise = self._noise(args)
        session = self.state.session(args.session)
        pairs = pairs_of(self, args, noise=noise)
        draw_swept(
            self,
            args,
            lambda on_progress: sweeping.sweep(
                self.state.engine,
                corrupted=session if noise is None and pairs is None else None,
                pairs=pairs,
                clean=session if noise is not None else named_line(self.state, args.clean),
                noise=noise,
                samples=args.samples,
                coefs=numbers_of(args.coefs),
                mode="exact" if args.exact else "fast",
                on_progress=on_progress,
                so_far=None if args.so_far is None else self.state.value(args.so_far),
                beside=engines_beside(self.state, args.beside),
                **cells_of(self.state, args),
                **given(seed=args.seed, adapter=args.adapter),
            ),
        )

    def _noise(self, args: Namespace) -> request.Noise | None:
        if args.noise is None:
            if args.samples is not None or args.noise_scale is not None:
                raise UsageError("--samples and --noise-scale are of the noise: add --noise POSITIONS.")
            return None
        if args.clean is not None:
            raise UsageError("--noise patches from the present line itself: leave --from out.")
        return arguments.noise(args.noise, **given(scale=args.noise_scale))


def cells_of(state: KernelState, args: Namespace) -> dict[str, Any]:
    """Return the arguments of `dj.sweep` in SITE, --over and CELLS."""
    return {
        "site": args.site,
        "over": args.over or (None if "*" in args.site else "layer,position"),
        "positions": args.positions,
        "align": None if args.align is None else aligned_positions(args.align),
        "window": window_of(args.window),
        "in_pairs": args.in_pairs,
        "edit": swept_edit(state, args.edit),
        "metric": metric_of(args),
    }


def metric_of(args: Namespace) -> str | list[str] | None:
    """Return the metric, or several; None where the pairs have their own."""
    metrics: list[str] = args.metrics or []
    return metrics[0] if len(metrics) == 1 else metrics or None


def pairs_of(group: Group, args: Namespace, *, noise: request.Noise | None = None) -> object:
    """Return the pairs of prompts of --prompts, None without it. Raises UsageError."""
    if args.prompts is None:
        return None
    if args.clean is not None or noise is not None:
        raise UsageError("--prompts gives both lines of each pair: leave --from and --noise out.")
    refuse_session(args)
    return prompts_of(group, args.prompts)


def refuse_session(args: Namespace) -> None:
    """Raise UsageError where a prompt of the session is named beside one that is given otherwise."""
    if args.session is not None:
        raise UsageError("--session has the present line, and another one is given: leave --session out.")


def draw_swept(group: Group, args: Namespace, compute: Callable[[OnProgress], Grid]) -> None:
    """Draw a grid, which fills during the computation, and keep it, also where it ended early. Raises UsageError, so
    that no later cell runs, where it was interrupted."""
    state = group.state
    drawing = screen.Redrawn(state.screen)
    try:
        grid = compute(lambda so_far, done, total: drawing.draw(lambda: card.grid_view(so_far)))
    except interrupts.WorkInterrupted as broken:
        found: Any = broken.kept
        if found is None:
            raise
        state.keep(args.keep, found)
        drawing.end(card.grid_view(found))
        raise UsageError(f"Interrupted. {found.notes[-1]}") from None
    except SweepEnded as ended:
        state.keep(args.keep, ended.grid)
        drawing.end(card.grid_view(ended.grid))
        raise
    state.keep(args.keep, grid)
    view = card.grid_view(grid)
    drawing.end(view)
    group.draw(args, view)


def swept_edit(state: KernelState, text: str | None) -> Edit | patches.Patch | str | None:
    """Return the edit that --edit spells; mean and resample by their names."""
    if text is None or text.strip() in ("mean", "resample"):
        return text if text is None else text.strip()
    return editing.parse_edit(state, words_of(text, posix=True), Namespace())


def named_line(state: KernelState, name: str | None) -> object:
    """Return the prompt of --from: a variable of this notebook, or a session."""
    there = None if name is None else state.shell.user_ns.get(name)
    return there if name is None or (there is not None and not callable(there)) else state.find(name)


def aligned_positions(text: str) -> list[Any]:
    """Return the alignment of --align: a number, a slice or a text in quotes, or two of them with = between."""
    if not _ALIGNED.fullmatch(text):
        raise UsageError(f"--align is a list such as \"' capital', -1, ' Italy'=' France'\"; {text!r} is none.")
    found = [[side.strip() for side in sides if side.strip()] for sides in _SIDES.findall(text)]
    return [sides[0] if len(sides) == 1 else tuple(sides) for sides in found]


def window_of(text: str | None) -> int | dict[str, int]:
    try:
        if text is None or "=" not in text:
            return int(text or 1)
        return {axis.strip(): int(size) for axis, size in (part.split("=") for part in text.split(","))}
    except ValueError:
        raise UsageError(f"--window is a number, or one by axis as layer=3,position=2; {text!r} is none.") from None
