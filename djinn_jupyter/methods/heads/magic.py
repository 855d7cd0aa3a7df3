"""Heads: scores of all of them in one request, all patterns of a sequence in one view; matrices of the model."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

from IPython.core.magic import magics_class

from djinn_jupyter.errors import UsageError
from djinn_jupyter.magics.parsing import ADAPTER, HOVER, KEEP, SAVE, SESSION, Group, given, option, verb
from djinn_jupyter.methods.common.magic import prompts_of
from djinn_jupyter.methods.heads import api as heads
from djinn_jupyter.methods.heads import card


@magics_class
class HeadsMagics(Group):
    @verb(
        option(
            "--patterns", action="store_true", help="draw the attention patterns of all heads over the present line"
        ),
        option("--page", action="store_true", help="show one --head: scores, attention over --prompts, OV circuit"),
        option(
            "--head",
            action="append",
            metavar="L.H",
            help="with --patterns show token by token where it looks; with --page show this head",
        ),
        option(
            "--prompts",
            metavar="FILE|NAME",
            help="score on these, not on random tokens that repeat once; with --page show what it attends to",
        ),
        option("--length", type=int, help="random tokens in a line before they repeat; default 50"),
        option("--samples", type=int, help="lines of random tokens; default 8"),
        option("--seed", type=int, help="seed of the random tokens; default 0"),
        ADAPTER,
        HOVER,
        SAVE,
        KEEP,
        SESSION,
    )
    def djinn_heads(self, args: Namespace) -> None:
        """Score all heads of the model by where they attend: the previous token, a duplicate, the token after it."""
        drawn = given(length=args.length, samples=args.samples, seed=args.seed)
        if args.page:
            self._page(args, drawn)
            return
        if args.patterns:
            if args.prompts is not None or args.adapter is not None or drawn:
                raise UsageError(
                    "--patterns are of the present line; leave --prompts, --length, --samples, --seed, --adapter out."
                )
            session = self.state.session(args.session)
            patterns = heads.patterns(session).choose(*(args.head or ()))
            self.keep_and_draw(args, patterns, card.patterns_view(patterns, session.name))
            return
        if args.head:
            raise UsageError("--head chooses heads of --patterns, or that of --page; scores are of all heads.")
        if args.prompts is not None and drawn:
            raise UsageError("--length, --samples and --seed are of random tokens; leave them out beside --prompts.")
        if args.session is not None:
            raise UsageError("--session has the line of --patterns; scores are of the model.")
        prompts = None if args.prompts is None else prompts_of(self, args.prompts)
        scores = heads.head_scores(self.state.engine, prompts, **drawn, adapter=args.adapter)
        self.keep_and_draw(args, scores, card.scores_view(scores))

    def _page(self, args: Namespace, drawn: dict[str, Any]) -> None:
        if len(args.head or ()) != 1:
            raise UsageError("A page is of one head: --page --head 5.1.")
        if args.patterns or drawn or args.session is not None:
            raise UsageError(
                "--page is of the model, with scores on random tokens; leave --patterns, --length, --samples, --seed, "
                "--session out."
            )
        prompts = None if args.prompts is None else prompts_of(self, args.prompts)
        page = heads.head(self.state.engine, args.head[0], prompts, adapter=args.adapter)
        self.keep_and_draw(args, page, card.page_view(page))

    @verb(
        option("name", metavar="NAME", help="W_U, W_E, W_pos; or of a layer W_Q.5, W_OV.5[3], W_in.5[17]"),
        option("--rows", help="keep these rows: 5, 1,4 or 0:100"),
        option("--columns", help="keep these columns"),
        option("--fold-norm", action="store_true", help="multiply in the gain of the norm before it"),
        KEEP,
    )
    def djinn_weight(self, args: Namespace) -> None:
        """Read a matrix of the model by name, oriented like the points: `x @ matrix` is the next point."""
        matrix = self.state.engine.weight(args.name, rows=args.rows, columns=args.columns, fold_norm=args.fold_norm)
        self.keep_and_show(args, matrix, f"{args.name}: {list(matrix.shape)} {matrix.dtype}")
