"""Moving: run, resume, step, back. Each ends in a stop card or a result."""

from __future__ import annotations

import argparse
from argparse import Namespace
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

from IPython.core.magic import magics_class

from djinn_jupyter.client import batches
from djinn_jupyter.described import add_flags, chosen
from djinn_jupyter.errors import DjinnError, UsageError
from djinn_jupyter.magics.batches import run_rows
from djinn_jupyter.magics.parsing import (
    EFFECT,
    KEEP,
    METRICS,
    SESSION,
    TOKEN,
    Group,
    given,
    numbers_of,
    option,
    read_prompt,
    refuse_others,
    unquoted,
    verb,
)
from djinn_jupyter.magics.showing import effect_asked, outcome_view, restored_by, sentence
from djinn_jupyter.sampling import GivenSampling
from djinn_jupyter.widgets import views

if TYPE_CHECKING:
    from djinn_jupyter.client.session import RemoteSession


SAMPLES = option(
    "--samples", type=int, metavar="N", help="run it N times at once, row i in session NAME/i, drawn with seed + i"
)


FORCE = option("--force", action="store_true", help="replace rows of these names that are another notebook's")
FAST = option("--fast", action="store_true", help="share passes with other runs that do; last bits may differ")


@magics_class
class RunningMagics(Group):
    @verb(
        option("prompt", nargs=argparse.REMAINDER, help="the text, as it stands; in quotes to keep spaces at its ends"),
        option("--max-tokens", type=int, metavar="N", help="how many new tokens at most; default 20"),
        *add_flags(option, GivenSampling),
        option(
            "--stop", action="append", metavar="TEXT", type=unquoted, help="end where this text appears; repeatable"
        ),
        option("--chat", action="store_true", help="put the prompt into the model's chat template"),
        option("--text-from", metavar="NAME", help="the text in this variable, or the texts: then each is a row"),
        option("--ids", metavar="NAME", help="a list of token ids in this variable, or a list of such lists"),
        SAMPLES,
        option("--coefs", type=unquoted, metavar="LIST", help="a dose-response: a row for each of 0,0.5,1 as a rule's"),
        option("--rule", type=int, metavar="N", help="--coefs: that rule's number; default the only rule"),
        METRICS,
        FAST,
        FORCE,
        option("--continue", dest="extend", action="store_true", help="go on from the present line of tokens"),
        option("--free", action="store_true", help="do not stop at breakpoints"),
        option("--ignore-eos", action="store_true", help="go on where the model would end its text"),
        EFFECT,
        TOKEN,
        KEEP,
        SESSION,
        cell=True,
        reader=read_prompt,
        literal=True,
    )
    def djinn_run(self, args: Namespace, cell: str | None = None) -> None:
        """Run a prompt until a breakpoint or the end. Options first, then the prompt; or the prompt as the cell.
        The prompt is run as it stands, `$x` and `{x}` too: --text-from takes a text from a variable."""
        session = self.state.session(args.session)
        options = given(max_new_tokens=args.max_tokens, stop=args.stop) | chosen(GivenSampling, args)
        prompt = self._prompt(args, cell)
        if args.late is not None:
            self.state.screen.say(f"{args.late} stands behind the prompt and is part of it: options go first.")
        options["mode"] = "fast" if args.fast else "exact"
        options |= {"chat": args.chat, "extend": args.extend, "free": args.free, "ignore_eos": args.ignore_eos}
        coefs = numbers_of(args.coefs)
        if not coefs and (args.metrics or args.rule is not None):
            raise UsageError("--metric and --rule are of a dose-response: add --coefs, as 0,0.5,1.")
        if args.samples is not None or coefs or batches.are_prompts(prompt):
            options |= given(samples=args.samples, coefs=coefs or None, rule=args.rule, force=args.force or None)
            alone = {**options, "max_new_tokens": 0, "samples": 1}
            prompts = None if args.max_tokens == 0 else lambda: session.run(prompt, **alone)
            run_rows(
                self.state, args, session, lambda on_row: session.run(prompt, on_row=on_row, **options), coefs, prompts
            )
            return
        if args.force:
            raise UsageError("--force replaces rows: it belongs to --samples, --coefs or a list of prompts.")
        self._move(args, session, lambda on_token: session.run(prompt, on_token=on_token, **options))

    def _prompt(self, args: argparse.Namespace, cell: str | None) -> Any:
        given_as = [p for p in (args.prompt or None, cell, args.text_from, args.ids) if p is not None]
        if len(given_as) > 1:
            raise UsageError("Give the prompt once: on the line, as the cell, as --text-from or as --ids.")
        if not given_as:
            if args.extend:
                return None
            raise UsageError("There is no prompt; write one, for example: %djinn_run The capital of France is")
        if args.ids is not None:
            return self.state.value(args.ids)
        if args.text_from is not None:
            return self._text(args.text_from)
        return given_as[0].removesuffix("\n") if cell is not None else given_as[0]

    def _text(self, name: str) -> str | list[str]:
        text: str | list[str] = self.state.value(name)
        if isinstance(text, str):
            return text
        if not isinstance(text, list | tuple):
            raise UsageError(f"{name} is no text but {type(text).__name__}; token ids are given with --ids.")
        if not text or not all(isinstance(one, str) for one in text):
            raise UsageError(
                f"{name} is {'an empty list' if not text else 'no list of texts'}; token ids are given with --ids."
            )
        return text

    @verb(
        option("--free", action="store_true", help="do not stop at breakpoints again"),
        SAMPLES,
        FAST,
        FORCE,
        option("--seed", type=int, metavar="S", help="of the samples' drawing; default 0"),
        EFFECT,
        TOKEN,
        KEEP,
        SESSION,
    )
    def djinn_resume(self, args: Namespace) -> None:
        """Go on from the stop, with the edits made there, until the next breakpoint or the end."""
        session = self.state.session(args.session)
        mode: Any = "fast" if args.fast else None
        options = given(samples=args.samples, seed=args.seed, free=args.free, mode=mode, force=args.force or None)
        if args.samples is None and (args.seed is not None or args.force):
            raise UsageError("--seed and --force belong to --samples: a run that goes on draws as it began.")
        if args.samples is None:
            self._move(args, session, lambda on_token: session.resume(on_token=on_token, **options))
            return
        run_rows(self.state, args, session, lambda on_row: session.resume(on_row=on_row, **options))

    @verb(
        option("count", nargs="?", type=int, default=1, help="how many; default 1"),
        option("--token", action="store_true", help="tokens instead of layers"),
        option("--point", action="store_true", help="points inside the layer instead of layers"),
        EFFECT,
        KEEP,
        SESSION,
    )
    def djinn_step(self, args: Namespace) -> None:
        """Go on by some layers (or tokens, or points of the layer) and stop again."""
        if args.token and args.point:
            raise UsageError("Step by tokens or by points: write one of --token and --point.")
        session = self.state.session(args.session)
        by: Literal["layer", "token", "point"] = "token" if args.token else "point" if args.point else "layer"
        self._move(args, session, lambda _: session.step(_count(args), by=by))

    @verb(
        option("count", nargs="?", type=int, default=1, help="how many; default 1"),
        option("--layer", action="store_true", help="layers instead of stops"),
        option("--token", action="store_true", help="tokens instead of stops"),
        option("--list", action="store_true", help="list the stops that are kept, instead of going"),
        EFFECT,
        KEEP,
        SESSION,
    )
    def djinn_back(self, args: Namespace) -> None:
        """Go back in the session's history: by stops, or by layers or tokens."""
        if args.layer and args.token:
            raise UsageError("Go back by layers or by tokens: write one of --layer and --token.")
        session = self.state.session(args.session)
        if args.list:
            refuse_others(args, "--list", "keep", "session")
            history = session.history()
            self.state.keep(args.keep, history)
            self.state.screen.show(views.history_view(history.stops, history.present, session=session.name))
            return
        by: Literal["stop", "layer", "token"] = "layer" if args.layer else "token" if args.token else "stop"
        self._move(args, session, lambda _: session.back(_count(args), by=by))

    def _move(self, args: argparse.Namespace, session: RemoteSession, go: Callable[[Any], Any]) -> None:
        """Run until it stands still; an interrupt leaves it stopped, shows where, and ends the cell in one line."""
        live = self.state.screen.live(session.name)
        before = session.describe()
        interrupted = self.state.client.Interrupted
        try:
            outcome = go(lambda event: live.gained(event.text))
        except interrupted as broken:
            stop = broken.stop
            self.state.outcomes[stop.session.name] = stop
            live.end(outcome_view(stop), stop.reply.stop, self.state.engine.channel)
            raise UsageError(f"Interrupted. {sentence(stop)}") from None
        except DjinnError as error:
            live.broken_off(str(error))
            raise
        except KeyboardInterrupt:
            live.broken_off("Interrupted twice: the cell did not wait for the run any more.")
            raise
        self.state.outcomes[outcome.session.name] = outcome
        self.state.keep(args.keep, outcome)
        view = outcome_view(outcome, effect=effect_asked(args), restored=restored_by(session, before))
        live.end(view, outcome.reply.stop, self.state.engine.channel)


def _count(args: argparse.Namespace) -> int:
    if args.count < 1:
        raise UsageError(f"{args.count} is no number of steps; write 1 or more.")
    count: int = args.count
    return count
