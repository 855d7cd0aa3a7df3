"""Edges: what each writer of the residual tells each reader in the present line, drawn as a graph."""

from __future__ import annotations

from argparse import Namespace
from typing import Any, Final

from IPython.core.magic import magics_class

from djinn_jupyter.errors import UsageError
from djinn_jupyter.magics.parsing import ADAPTER, KEEP, SESSION, Group, given, option, unquoted, verb
from djinn_jupyter.methods.circuits import card
from djinn_jupyter.methods.circuits.api import edges
from djinn_jupyter.methods.common.magic import prompts_of
from djinn_jupyter.methods.sweep.magic import named_line, refuse_session

DRAWN: Final = 20


@magics_class
class EdgeMagics(Group):
    @verb(
        option(
            "--from",
            dest="clean",
            metavar="NAME",
            help="the clean line: a session, or a variable with a text or token ids; as long as the present one",
        ),
        option("--metric", type=unquoted, metavar="EXPR", help="such as \"logit(' Mary') - logit(' John')\""),
        option(
            "--prompts",
            metavar="FILE|NAME",
            help="many pairs: a file or list of (clean, corrupted), for --from; with answers, for --metric",
        ),
        option("--steps", type=int, help="EAP-IG: the mean gradient over so many points between the lines"),
        option("--top", type=int, help="draw so many of the strongest edges; default 20"),
        option("--exact", action="store_true", help="patch the edges that are drawn exactly too, a pass each"),
        ADAPTER,
        KEEP,
        SESSION,
        literal=True,
    )
    def djinn_edges(self, args: Namespace) -> None:
        """Score every edge from a writer of the residual to a reader by gradients.
        The strongest are drawn as a graph, in which a click stops there."""
        if not (args.metric or args.prompts):
            raise UsageError("Edges need a metric: --metric \"logit(' Mary') - logit(' John')\".")
        found = edges.edges(
            self.state.engine,
            **self._lines(args),
            metric=args.metric,
            top=(DRAWN if args.top is None else args.top) if args.exact else None,
            **given(steps=args.steps, adapter=args.adapter),
        )
        self.state.keep(args.keep, found)
        self.state.screen.show(card.edges_view(found, top=DRAWN if args.top is None else args.top))

    def _lines(self, args: Namespace) -> dict[str, Any]:
        if (args.prompts is None) == (args.clean is None):
            raise UsageError("Edges are scored between two lines: name the clean one with --from, or give --prompts.")
        if args.prompts is not None:
            refuse_session(args)
            return {"pairs": prompts_of(self, args.prompts)}
        return {"clean": named_line(self.state, args.clean), "corrupted": self.state.session(args.session)}
