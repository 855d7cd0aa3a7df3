"""Direct logit attribution of a prompt: the parts of a logit by layer, head and neuron, as a table."""

from __future__ import annotations

import argparse
from argparse import Namespace
from typing import Any

from IPython.core.magic import magics_class

from djinn_jupyter.errors import UsageError
from djinn_jupyter.magics.parsing import ADAPTER, HOVER, KEEP, SAVE, Group, given, option, read_prompt, unquoted, verb
from djinn_jupyter.methods.direct import api, card


@magics_class
class DirectMagics(Group):
    @verb(
        option("prompt", nargs=argparse.REMAINDER, help="the text, as it stands; in quotes to keep spaces at its ends"),
        option(
            "--metric", type=unquoted, metavar="EXPR", help="\"logit(' Mary')\", or \"logit(' Mary') - logit(' John')\""
        ),
        option("--over", help="layer with head, neuron or both: layer,head is the default"),
        option("--top", type=int, help="list so many of the largest parts; of neurons 10 by default"),
        option("--ids", metavar="NAME", help="a list of token ids in this variable, in place of a text"),
        ADAPTER,
        HOVER,
        SAVE,
        KEEP,
        reader=read_prompt,
    )
    def djinn_direct(self, args: Namespace) -> None:
        """Show what each layer, head or neuron adds to a logit at a prompt's end. Options first, then the prompt."""
        if not args.metric:
            raise UsageError("A direct attribution needs a metric: --metric \"logit(' Mary') - logit(' John')\".")
        line = self._line(args)
        if args.late is not None:
            self.state.screen.say(f"{args.late} stands behind the prompt and is part of it: options go first.")
        read = api.direct(self.state.engine, line, metric=args.metric, **given(over=args.over, adapter=args.adapter))
        self.keep_and_draw(args, read, card.attribution_view(read, top=args.top))

    def _line(self, args: Namespace) -> Any:
        if bool(args.prompt) == (args.ids is not None):
            raise UsageError("Give the line once: as a text at the end, or as --ids.")
        return args.prompt or self.state.value(args.ids)
