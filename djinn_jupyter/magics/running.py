"""A batch in a cell, as one table that fills while its rows end; and the magics that run."""

from __future__ import annotations

import argparse
import math
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal, cast

from IPython.core.magic import magics_class
from msgspec import UNSET

from djinn_jupyter.api import batches, stops
from djinn_jupyter.api.batches import OnRow
from djinn_jupyter.api.session import RemoteSession
from djinn_jupyter.api.stops import Stop
from djinn_jupyter.errors import BatchEnded, DjinnError, InvalidCondition, NoTokenizer, UsageError
from djinn_jupyter.magics.kernel_state import KernelState
from djinn_jupyter.magics.looking import effect_asked, outcome_view, restored_by, sentence
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
from djinn_jupyter.magics.screen import Redrawn
from djinn_jupyter.settings import GivenDrawing, GivenSampling, add_flags, chosen
from djinn_jupyter.widgets import views
from djinn_jupyter.widgets.view import View
from djinn_jupyter.wire.replies import TokenSampled

DIGITS: Final = 4  # a confident model's logit of its answer changes by little


def run_rows(
    state: KernelState,
    args: Namespace,
    session: RemoteSession,
    go: Callable[[OnRow], Sequence[Stop]],
    coefs: Sequence[float] = (),
    prompts: Callable[[], Sequence[Stop]] | None = None,
) -> None:
    """Run a batch and show it, also one that ends early; its rows are then this notebook's sessions. `coefs` makes a
    dose-response, whose metrics are drawn below. `prompts` runs one row each for no new token, so that the metrics are
    read after the prompt: None where `go` does."""
    if getattr(args, "effect", False) or getattr(args, "measure", None):
        raise UsageError("--effect measures one stop; leave it out, or run one prompt.")
    if coefs and args.metrics:
        _require_metrics(session, args.metrics)
    drawing = _Drawing(state, session, coefs, args.samples or 1)
    reads = bool(coefs and args.metrics)
    if reads and prompts is not None:
        drawing.read(args.metrics, _ended(prompts))
    try:
        rows: Sequence[Any] = go(drawing.add)
    except BatchEnded as ended:
        _keep(state, args, drawing, ended.rows)
        raise
    except stops.BatchInterrupted as broken:
        _keep(state, args, drawing, broken.rows)
        raise UsageError(f"Interrupted. {broken}") from None
    if reads and prompts is None:
        drawing.read(args.metrics, rows)
    _keep(state, args, drawing, rows)
    if reads:
        _show_responses(state, args.metrics, drawing.responses)


def _require_metrics(session: RemoteSession, metrics: Sequence[str]) -> None:
    """Raise InvalidCondition or NoTokenizer for a metric that no row could have, before the rows of an earlier batch
    end. The engine parses the metrics before it looks for logits, which this session may not have."""
    try:
        session.metrics(*metrics)
    except (InvalidCondition, NoTokenizer):
        raise
    except DjinnError:
        return


def _ended(prompts: Callable[[], Sequence[Stop]]) -> Sequence[Any]:
    """Return the rows of a run for no new token, even if some failed. An interrupt ends the cell."""
    try:
        return prompts()
    except BatchEnded as ended:
        return list(ended.rows)
    except stops.BatchInterrupted as broken:
        raise UsageError(f"Interrupted. {broken}") from None


def _show_responses(state: KernelState, metrics: Sequence[str], found: Mapping[float, Sequence[float]]) -> None:
    """Draw each metric over the coefficients, in a picture of its own."""
    if not found:
        raise UsageError(
            "No row ran its prompt to the end, so that no metric could be read behind it; their stops are above."
        )
    for number, metric in enumerate(metrics):
        series = {metric: [values[number] for values in found.values()]}
        view = views.dose_response_view(
            list(found),
            series,
            dose="coefficient",
            response=f"{metric}, behind the prompt",
            title="Dose-response",
            digits=DIGITS,
        )
        state.screen.show(view)


def _keep(state: KernelState, args: Namespace, drawing: _Drawing, rows: Sequence[Any]) -> None:
    for row in rows:
        if isinstance(row, stops.Paused | stops.Finished):
            state.hold(cast("RemoteSession", row.session))
            state.outcomes[row.session.name] = row
    state.keep(args.keep, drawing.table(rows, args))
    drawing.end(rows)


class _Drawing:
    """One table: the finished rows while the batch runs, and all rows at the end."""

    def __init__(self, state: KernelState, session: RemoteSession, coefs: Sequence[float], samples: int) -> None:
        self._display, self._session = Redrawn(state.screen), session
        self._coefs, self._samples = coefs, samples
        self._rows: dict[int, Stop] = {}
        self.responses: dict[float, tuple[float, ...]] = {}

    def read(self, metrics: Sequence[str], rows: Sequence[Any]) -> None:
        """Read the metrics of rows that ran their prompts."""
        self.responses = batches.responses(rows, batches.doses_of(rows, self._coefs, 1), metrics)

    def table(self, rows: Sequence[Any], args: Namespace) -> list[Any]:
        """Return the rows as kept."""
        if not self._coefs:
            return list(rows)
        return batches.DoseRows(rows, self.doses(rows), args.metrics or (), self.responses)

    def doses(self, rows: Sequence[Any]) -> Sequence[float]:
        """Return the coefficient of each row; empty where there are none."""
        return batches.doses_of(rows, self._coefs, self._samples) if self._coefs else ()

    def add(self, number: int, stop: Stop) -> None:
        self._rows[number] = stop
        self._display.draw(lambda: self._view([self._rows.get(one) for one in range(max(self._rows) + 1)]))

    def end(self, rows: Sequence[Any]) -> None:
        self._display.end(self._view(rows))

    def _view(self, rows: Sequence[Any]) -> View:
        shown = [getattr(row, "reply", None if row is None else str(row)) for row in rows]
        return views.rows_view(self._session.name, shown, self.doses(rows))


# Moving: run, resume, step, back. Each ends in a stop card or a result.

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
    )
    def djinn_run(self, args: Namespace, cell: str | None = None) -> None:
        """Run a prompt until a breakpoint or the end.
        Options first, then the prompt; or the prompt as the cell. The prompt is used verbatim, including `$x` and
        `{x}`: --text-from takes a text from a variable."""
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
        *add_flags(option, GivenDrawing),
        SAMPLES,
        FAST,
        FORCE,
        EFFECT,
        TOKEN,
        KEEP,
        SESSION,
    )
    def djinn_resume(self, args: Namespace) -> None:
        """Continue from the stop, with its edits, to the next breakpoint or the end.

        Settings of sampling that are not given stay as they were."""
        session = self.state.session(args.session)
        mode: Any = "fast" if args.fast else None
        options = given(samples=args.samples, free=args.free, mode=mode, force=args.force or None)
        options |= chosen(GivenDrawing, args)
        if args.samples is None and args.force:
            raise UsageError("--force belongs to --samples: a run that goes on has no rows.")
        if args.samples is None:
            self._move(args, session, lambda on_token: session.resume(on_token=on_token, **options))
            return
        run_rows(self.state, args, session, lambda on_row: session.resume(on_row=on_row, **options))

    @verb(option("name", nargs="?", help="the session; by default this notebook's, which another client runs"))
    def djinn_pause(self, args: argparse.Namespace) -> None:
        """Stop a run of another notebook at its next layer. An interrupt of the cell stops one of this notebook."""
        session = self.state.reach(args.name)
        stops = session.pause()
        self.state.screen.say(
            f"session {session.label} stops at its next layer" if stops else f"nothing runs in session {session.label}"
        )

    @verb(
        option("count", nargs="?", type=int, default=1, help="how many; default 1"),
        option("--token", action="store_true", help="tokens instead of layers"),
        option("--point", action="store_true", help="points inside the layer instead of layers"),
        EFFECT,
        KEEP,
        SESSION,
    )
    def djinn_step(self, args: Namespace) -> None:
        """Continue by some layers (or tokens, or points of the layer) and stop again."""
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
            view = views.history_view(history.stops, history.present, session=session.name)
            self.keep_and_show(args, history, view)
            return
        by: Literal["stop", "layer", "token"] = "layer" if args.layer else "token" if args.token else "stop"
        self._move(args, session, lambda _: session.back(_count(args), by=by))

    def _move(self, args: argparse.Namespace, session: RemoteSession, go: Callable[[Any], Any]) -> None:
        """Run until the session stops; an interrupt stops it, shows where, and ends the cell in one line."""
        live = self.state.screen.live(session.name)
        before = session.describe()
        interrupted = self.state.client.Interrupted
        try:
            outcome = go(lambda event: live.gained(event.text, _probability(event)))
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


def _probability(event: TokenSampled) -> float | None:
    """Return the probability of a streamed token, None where its engine does not tell it."""
    return None if event.log_probability is UNSET else math.exp(event.log_probability)


def _count(args: argparse.Namespace) -> int:
    if args.count < 1:
        raise UsageError(f"{args.count} is no number of steps; write 1 or more.")
    count: int = args.count
    return count
