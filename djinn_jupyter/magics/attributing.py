"""Attribution: what a sweep of the present line would find, estimated by gradients, shown as a heatmap."""

from __future__ import annotations

from argparse import Namespace

from IPython.core.magic import magics_class

from djinn_jupyter.errors import UsageError
from djinn_jupyter.magics.lazily import attributing
from djinn_jupyter.magics.parsing import KEEP, METRICS, SESSION, Group, given, option, unquoted, verb
from djinn_jupyter.magics.sweeping import (
    aligned_positions,
    draw_swept,
    has_stars,
    named_line,
    pairs_of,
    swept_edit,
    window_of,
)


@magics_class
class AttributingMagics(Group):
    @verb(
        option(
            "site",
            help="a point such as resid_post, with a layer where --over has none: mlp_out.4; stars are axes: z.*[*]",
        ),
        option("--over", help="of point, layer, position, head, neuron; default the site's stars, else layer,position"),
        option("--positions", type=unquoted, metavar="P", help="attribute to these alone: 2:5,-1, last, or a token"),
        option(
            "--align",
            type=unquoted,
            metavar="LIST",
            help="lines of unequal length: what corresponds, present=clean: \"' capital', -1, ' Italy'=' France'\"",
        ),
        option("--prompts", metavar="FILE|NAME", help="many pairs: a file or list of (clean, corrupted), for --from"),
        option("--window", metavar="N", help="so many layers together, from the cell's on; position=2 is positions"),
        option("--pairs", dest="in_pairs", action="store_true", help="two cells at once: every pair of cells"),
        option(
            "--from",
            dest="clean",
            metavar="NAME",
            help="the clean line: a session, or a variable with a text or token ids; without it gradient x activation",
        ),
        METRICS,
        option("--edit", type=unquoted, metavar="EDIT", help='instead of patching: zero, mean, resample, "scale 0.5"'),
        option("--steps", type=int, help="integrated gradients: the mean over so many points between the lines"),
        option("--seed", type=int, help="of --edit resample; default 0"),
        option("--hover", action="store_true", help="a plotly figure below, to read values under the pointer"),
        KEEP,
        SESSION,
        literal=True,
    )
    def djinn_attribute(self, args: Namespace) -> None:
        """Estimate by gradients what a sweep of the present line would change, and draw it."""
        if not args.metrics:
            raise UsageError("An attribution needs a metric: --metric \"logit(' Mary') - logit(' John')\".")
        session, pairs = self.state.session(args.session), pairs_of(self, args)
        draw_swept(
            self.state,
            args,
            lambda on_progress: attributing.attribute(
                self.state.engine,
                corrupted=session if pairs is None else None,
                pairs=pairs,
                clean=named_line(self.state, args.clean),
                positions=args.positions,
                align=None if args.align is None else aligned_positions(args.align),
                site=args.site,
                over=args.over or (None if has_stars(args.site) else "layer,position"),
                window=window_of(args.window),
                in_pairs=args.in_pairs,
                metric=args.metrics[0] if len(args.metrics) == 1 else args.metrics,
                edit=swept_edit(self.state, args.edit),
                **given(seed=args.seed, steps=args.steps),
            ),
        )
