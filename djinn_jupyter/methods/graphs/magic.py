"""Attribution graphs: how features of transcoders make the next token of the present tokens, drawn."""

from __future__ import annotations

import re
from argparse import Namespace

from IPython.core.magic import magics_class

from djinn_jupyter.errors import UsageError
from djinn_jupyter.magics.parsing import HOVER, KEEP, SAVE, SESSION, Group, given, option, unquoted, verb
from djinn_jupyter.methods.graphs import api, card
from djinn_jupyter.methods.sweep.magic import named_line, refuse_session


def grouped(text: str) -> tuple[str, list[str]]:
    """Return the name and the nodes of a group, from `NAME=NODE, NODE`. Raises UsageError."""
    name, _, nodes = text.partition("=")
    found = [one.strip() for one in re.findall(r"(?:\[[^\]]*\]|[^,\[])+", nodes)]
    if not any(found):
        raise UsageError(f'--group {text} has no nodes: write "country=tc.4[17] @3, tc.5[2]".')
    return name.strip(), found


@magics_class
class GraphMagics(Group):
    @verb(
        option("module", nargs="?", default="tc", help="the name of the added transcoders; default tc"),
        option("--metric", type=unquoted, metavar="EXPR", help="default: the logits of the most probable tokens"),
        option("--from", dest="line", metavar="NAME", help="another line: a session, or a variable with a text or ids"),
        option("--features", type=int, help="compute the effects on so many features; default 1024"),
        option(
            "--group",
            action="append",
            metavar="NAME=NODES",
            type=unquoted,
            help='draw these nodes as one: "country=tc.4[17] @3, tc.5[2]"; a site without @ is all of its nodes',
        ),
        option("--top", type=int, help="draw so many of the most influential edges; default 30"),
        HOVER,
        SAVE,
        KEEP,
        SESSION,
    )
    def djinn_graph(self, args: Namespace) -> None:
        """Make the attribution graph of the present tokens through added transcoders.
        The edges with the most influence are drawn; a click on a feature stops there, at its position."""
        if args.line is not None:
            refuse_session(args)
        line = self.state.session(args.session) if args.line is None else named_line(self.state, args.line)
        found = api.attribution_graph(
            self.state.engine, line, args.metric, module=args.module, **given(features=args.features)
        )
        for name, nodes in map(grouped, args.group or ()):
            found = found.group(name, nodes)
        self.keep_and_draw(args, found, card.attribution_graph_view(found, **given(top=args.top)))
