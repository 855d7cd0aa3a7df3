"""Attribution: the effects of a sweep of the present tokens, estimated by gradients, as a heatmap."""

from __future__ import annotations

from argparse import Namespace
from typing import Final

from IPython.core.magic import magics_class

from djinn_jupyter.errors import UsageError
from djinn_jupyter.magics.parsing import ADAPTER, BESIDE, HOVER, KEEP, SAVE, SESSION, Group, given, option, verb
from djinn_jupyter.methods.attribution import api
from djinn_jupyter.methods.common.magic import A_LINE, engines_beside, from_line
from djinn_jupyter.methods.sweep.api.arguments import AXES
from djinn_jupyter.methods.sweep.magic import CELLS, SITE, cells_of, draw_swept, named_line, pairs_of

ESTIMATED: Final = [axis for axis in AXES if axis != "coef"]


@magics_class
class AttributingMagics(Group):
    @verb(
        SITE,
        option("--over", help=f"of {', '.join(ESTIMATED)}; default the site's stars, else layer,position"),
        from_line("clean", f"the clean line: {A_LINE}; without it gradient x activation"),
        *CELLS,
        option("--steps", type=int, help="integrated gradients: the mean over so many points between the lines"),
        option("--correct", metavar="LIST", help="as AtP* does: attention (queries and keys), cancellation, or both"),
        option("--top", type=int, metavar="K", help="compute the K strongest cells too, by an exact sweep"),
        option("--seed", type=int, help="of --edit resample; default 0"),
        ADAPTER,
        BESIDE,
        HOVER,
        SAVE,
        KEEP,
        SESSION,
    )
    def djinn_attribute(self, args: Namespace) -> None:
        """Estimate by gradients the effects of a sweep of the present tokens, and draw them."""
        if not (args.metrics or args.prompts):
            raise UsageError("An attribution needs a metric: --metric \"logit(' Mary') - logit(' John')\".")
        session, pairs = self.state.session(args.session), pairs_of(self, args)
        draw_swept(
            self,
            args,
            lambda on_progress: api.attribute(
                self.state.engine,
                corrupted=session if pairs is None else None,
                pairs=pairs,
                clean=named_line(self.state, args.clean),
                beside=engines_beside(self.state, args.beside),
                **cells_of(self.state, args),
                **given(seed=args.seed, steps=args.steps, corrections=args.correct, top=args.top, adapter=args.adapter),
            ),
        )
