"""Paths: the effect of one place on another for the present tokens, as a heatmap of senders."""

from __future__ import annotations

from argparse import Namespace

from IPython.core.magic import magics_class
from IPython.core.magic_arguments import MagicArgumentParser

from djinn_jupyter.errors import UsageError
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
    option,
    read,
    unquoted,
    verb,
)
from djinn_jupyter.methods.common.magic import A_LINE, PAIRS, engines_beside, from_line, prompts_of
from djinn_jupyter.methods.paths import api as paths
from djinn_jupyter.methods.sweep.magic import draw_swept, metric_of, named_line, refuse_session, swept_edit

ARROW = "\u2192"  # argparse does not take it for an option, unlike "->"


def read_path(parser: MagicArgumentParser, line: str) -> Namespace:
    """Read a line with an arrow in it."""
    return read(parser, line.replace("->", ARROW, 1))


@magics_class
class PathMagics(Group):
    @verb(
        option(
            "path", nargs="*", help="SENDER -> RECEIVERS: z -> q.5[0], k.5[0]; z.2[1] -> logits; mlp_out -> mlp_in.6"
        ),
        from_line("corrupted", f"the corrupted line, whose values are sent: {A_LINE}"),
        METRICS,
        PAIRS,
        option("--over", help="other axes than those the sender leaves open: layer,position"),
        option("--edit", type=unquoted, metavar="EDIT", help='instead of --from: zero, mean, resample, "scale 0.5"'),
        option("--exact", action="store_true", help="compute each path alone, bit for bit as by hand"),
        option("--seed", type=int, help="chooses the paths that are computed again alone; default 0"),
        ADAPTER,
        BESIDE,
        HOVER,
        SAVE,
        SO_FAR,
        KEEP,
        SESSION,
        reader=read_path,
    )
    def djinn_path(self, args: Namespace) -> None:
        """Patch paths in the present tokens: only the receivers see another value of the sender."""
        if not (args.metrics or args.prompts):
            raise UsageError("A path needs a metric: --metric \"logit(' Mary') - logit(' John')\".")
        if args.prompts is not None and args.corrupted is not None:
            raise UsageError("--prompts gives both lines of each pair: leave --from out.")
        if args.prompts is not None:
            refuse_session(args)
        pairs = None if args.prompts is None else prompts_of(self, args.prompts)
        draw_swept(
            self,
            args,
            lambda on_progress: paths.path(
                self.state.engine,
                " ".join(args.path),
                clean=self.state.session(args.session) if pairs is None else None,
                pairs=pairs,
                corrupted=named_line(self.state, args.corrupted),
                metric=metric_of(args),
                over=args.over,
                edit=swept_edit(self.state, args.edit),
                mode="exact" if args.exact else "fast",
                on_progress=on_progress,
                so_far=None if args.so_far is None else self.state.value(args.so_far),
                beside=engines_beside(self.state, args.beside),
                **given(seed=args.seed, adapter=args.adapter),
            ),
        )
