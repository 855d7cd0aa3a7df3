"""Circuits: the edges of a result that do its task, with all others from the corrupted prompt, drawn as a graph; and
the scores of edges."""

from __future__ import annotations

from argparse import Namespace
from typing import Any, Final

from IPython.core.magic import magics_class

from djinn_jupyter.api.arguments import given_path
from djinn_jupyter.errors import UsageError
from djinn_jupyter.magics.parsing import (
    ADAPTER,
    HOVER,
    KEEP,
    SAVE,
    SESSION,
    Group,
    given,
    option,
    refuse_others,
    unquoted,
    verb,
)
from djinn_jupyter.magics.screen import Redrawn
from djinn_jupyter.methods.circuits import card
from djinn_jupyter.methods.circuits.api import circuits, edges, pruning
from djinn_jupyter.methods.circuits.api.circuits import Circuit, CircuitCurve
from djinn_jupyter.methods.circuits.api.edges import Edges
from djinn_jupyter.methods.common.magic import A_LINE, PAIRS, from_line, prompts_of
from djinn_jupyter.methods.sweep.magic import named_line, refuse_session
from djinn_jupyter.widgets import views
from djinn_jupyter.wire.texts import in_quotes


@magics_class
class CircuitMagics(Group):
    @verb(
        option("found", metavar="NAME|FILE", help="the edges, as -o kept them, or a file of edges"),
        option("--edges", type=int, metavar="N", help="keep so many edges of the largest scores"),
        option("--threshold", type=float, metavar="SCORE", help="keep the edges whose score is at least so large"),
        option("--faithfulness", type=float, metavar="SHARE", help="keep the fewest first edges that are so faithful"),
        option(
            "--acdc",
            type=float,
            metavar="CHANGE",
            help="drop each edge, from the logits backwards, whose absence changes the metric by less; a pass each",
        ),
        option("--first", type=int, metavar="N", help="with --acdc: begin with so many edges of the largest scores"),
        option("--curve", action="store_true", help="the faithfulness at MIB's sizes, with its areas CPR and CMD"),
        option("--signed", action="store_true", help="take scores as they are, the largest first, not by their size"),
        option("--known", metavar="NAME", help="a list of (writer, reader) that is the circuit: tell the AUROC too"),
        option("--top", type=int, help="draw so many of the strongest edges that are kept; default 120"),
        HOVER,
        SAVE,
        KEEP,
    )
    def djinn_circuit(self, args: Namespace) -> None:
        """Prune edges to a circuit, and run it with all other edges from the corrupted line.
        The graph has the kept edges, and the faithfulness below."""
        _require_one_way(args)
        found = self._found(args.found)
        said = [] if args.known is None else [self._auroc(found, args.known)]
        progress = Redrawn(self.state.screen, at_once=False)
        made: Any = self._curve(args, found) if args.curve else self._circuit(args, found, progress)
        self.state.keep(args.keep, made)
        view = card.curve_view(made) if args.curve else card.circuit_view(made, **given(top=args.top))
        progress.end(view)
        self.draw(args, view)
        if said:
            self.state.screen.say("\n".join(said))

    def _circuit(self, args: Namespace, found: Edges, progress: Redrawn) -> Circuit:
        if args.acdc is not None:
            return pruning.acdc(
                self.state.engine,
                found,
                args.acdc,
                first=args.first,
                on_progress=lambda done, edges, kept: progress.draw(
                    lambda: views.progress_view(f"{done:,} of {edges:,} edges decided, {kept:,} left", running=False)
                ),
            )
        wanted = given(threshold=args.threshold, faithfulness=args.faithfulness)
        return circuits.circuit(self.state.engine, found, args.edges, absolute=not args.signed, **wanted)

    def _curve(self, args: Namespace, found: Edges) -> CircuitCurve:
        return circuits.circuit_curve(self.state.engine, found, absolute=not args.signed)

    def _auroc(self, found: Edges, name: str) -> str:
        """Return the sentence on how well scores distinguish the edges of a variable from others."""
        known = self.state.shell.user_ns.get(name)
        if not isinstance(known, list | tuple | set) or not all(
            isinstance(e, list | tuple) and len(e) == 2 for e in known
        ):
            raise UsageError(f"{in_quotes(name)} is no list of edges: give a variable with (writer, reader) pairs.")
        return f"AUROC of the scores against the {len(known):,} edges of {name}: {circuits.auroc(found, known):.3f}"

    def _found(self, name: str) -> Edges:
        """Return the edges of a variable, or of a file."""
        there = self.state.shell.user_ns.get(name)
        if isinstance(there, edges.Edges):
            return there
        if there is None and (path := given_path(name, "file")).is_file():
            read: Edges = edges.Edges.read(path)
            return read
        raise UsageError(
            f"{in_quotes(name)} is neither a variable nor a file with edges: score some with %djinn_edges ... -o found."
        )


def _require_one_way(args: Namespace) -> None:
    """Raise UsageError where a line specifies no circuit, or several."""
    ways = [args.edges, args.threshold, args.faithfulness, args.acdc, args.curve or None]
    if sum(way is not None for way in ways) != 1:
        raise UsageError("Tell a circuit by one of --edges, --threshold, --faithfulness, --acdc and --curve.")
    if args.curve:
        refuse_others(args, "--curve", "found", "signed", "known", "keep")
    if args.first is not None and args.acdc is None:
        raise UsageError("--first says with how many edges --acdc begins; give --acdc too.")
    if args.signed and args.acdc is not None:
        raise UsageError("--signed is of scores, which --acdc does not drop edges by; leave one of the two out.")


# Edges: the effect of each writer of the residual on each reader, for the present tokens, drawn as a graph.

DRAWN: Final = 20


@magics_class
class EdgeMagics(Group):
    @verb(
        from_line("clean", f"the clean line: {A_LINE}; as long as the present one"),
        option("--metric", type=unquoted, metavar="EXPR", help="such as \"logit(' Mary') - logit(' John')\""),
        PAIRS,
        option("--steps", type=int, help="EAP-IG: the mean gradient over so many points between the lines"),
        option("--top", type=int, help="draw so many of the strongest edges; default 20"),
        option("--exact", action="store_true", help="patch the edges that are drawn exactly too, a pass each"),
        ADAPTER,
        HOVER,
        SAVE,
        KEEP,
        SESSION,
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
        self.keep_and_draw(args, found, card.edges_view(found, **given(top=args.top)))

    def _lines(self, args: Namespace) -> dict[str, Any]:
        if (args.prompts is None) == (args.clean is None):
            raise UsageError("Edges are scored between two lines: name the clean one with --from, or give --prompts.")
        if args.prompts is not None:
            refuse_session(args)
            return {"pairs": prompts_of(self, args.prompts)}
        return {"clean": named_line(self.state, args.clean), "corrupted": self.state.session(args.session)}
