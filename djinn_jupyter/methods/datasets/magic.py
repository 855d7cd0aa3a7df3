"""Data sets: activations of many prompts, written to files; losses of prompts, also with an SAE in place of a point."""

from __future__ import annotations

from argparse import Namespace

from IPython.core.magic import magics_class

from djinn_jupyter.api.interrupts import WorkInterrupted
from djinn_jupyter.errors import MeasurementEnded, UsageError
from djinn_jupyter.magics.parsing import ADAPTER, BESIDE, KEEP, SESSION, Group, given, option, verb
from djinn_jupyter.magics.screen import Redrawn
from djinn_jupyter.methods.common.magic import PROMPTS, engines_beside, prompts_of
from djinn_jupyter.methods.datasets import card
from djinn_jupyter.methods.datasets.api import collecting, scoring, session_verbs
from djinn_jupyter.widgets import views


@magics_class
class CollectingMagics(Group):
    @verb(
        option("sites", nargs="+", help="such as resid_post.4, z.5[1] or mlp_out.*, which is every layer"),
        PROMPTS,
        option("--to", metavar="FOLDER", help="where to write; a collection that is there already is gone on with"),
        option("--positions", metavar="P", help="such as -1, 0,4 or 1:5, kept of each prompt; default all"),
        option("--dtype", choices=("float32", "bfloat16", "float16"), help="of the values stored; default as computed"),
        option("--shard-prompts", type=int, metavar="N", help="prompts in a file; default by their size"),
        option("--exact", action="store_true", help="run each prompt alone, bit for bit as by hand"),
        option("--seed", type=int, help="chooses the prompts that are computed again alone; default 0"),
        ADAPTER,
        BESIDE,
        KEEP,
    )
    def djinn_collect(self, args: Namespace) -> None:
        """Write the values at sites of many prompts to files that numpy, torch and datasets read lazily."""
        if args.prompts is None or args.to is None:
            raise UsageError("A collection needs prompts and a folder: --prompts FILE|NAME --to FOLDER.")
        progress = Redrawn(self.state.screen, at_once=False)
        try:
            acts = collecting.collect(
                self.state.engine,
                prompts_of(self, args.prompts),
                ",".join(word.strip(",") for word in args.sites),
                to=args.to,
                positions=args.positions,
                dtype=args.dtype,
                shard_prompts=args.shard_prompts,
                mode="exact" if args.exact else "fast",
                **given(seed=args.seed, adapter=args.adapter),
                beside=engines_beside(self.state, args.beside),
                on_progress=lambda done: progress.draw(
                    lambda: views.progress_view(f"{done} prompts collected", running=False)
                ),
            )
        except KeyboardInterrupt:
            raise UsageError(
                f"Interrupted. Whole shards are kept in {args.to}; the same line goes on after them."
            ) from None
        self.keep_and_show(args, acts, card.collected_lines(acts))

    @verb(
        PROMPTS,
        option("--text-from", metavar="NAME", help="the text in this variable, under the rules of the session"),
        option("--fast", action="store_true", help="--prompts: share passes; some prompts are computed again alone"),
        KEEP,
        SESSION,
    )
    def djinn_loss(self, args: Namespace) -> None:
        """Measure the loss of each token and the perplexity of the present tokens, or of other prompts.
        The session's steering rules are in force."""
        session = self.state.session(args.session)
        if args.prompts is not None and args.text_from is not None:
            raise UsageError("Give the text once: as --prompts or as --text-from.")
        prompts: object = None
        if args.prompts is not None:
            prompts = prompts_of(self, args.prompts)
        elif args.text_from is not None:
            prompts = [self.state.value(args.text_from)]
        try:
            losses = session_verbs.loss(session, prompts, mode="fast" if args.fast else "exact")
        except (MeasurementEnded, WorkInterrupted) as ended:
            if ended.kept is not None:
                self.state.keep(args.keep, ended.kept)
            raise
        self.state.keep(args.keep, losses)
        rules = [f"{rule.number}: {rule.what}" for rule in session.rules() if rule.enabled]
        self.state.screen.say(card.loss_lines(losses, rules))

    @verb(option("module", help="an SAE, such as sae.8, or a name for all its layers"), PROMPTS, KEEP)
    def djinn_splice(self, args: Namespace) -> None:
        """Measure the loss of prompts with an SAE's reconstruction in place of its point.
        Beside it are the loss of the model, and the one with the point at zero."""
        if args.prompts is None:
            raise UsageError("Name the prompts to measure by: --prompts FILE, or a variable with a list.")
        found = scoring.splice(self.state.engine, args.module, prompts_of(self, args.prompts))
        self.keep_and_show(args, found, repr(found))
