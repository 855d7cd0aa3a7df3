"""The result of a run, while it streams and when it has ended."""

from __future__ import annotations

import math
from collections.abc import Sequence

from djinn_jupyter.widgets.effect import top_table
from djinn_jupyter.widgets.markup import Html, div, joined, span
from djinn_jupyter.widgets.residency import transfer_line
from djinn_jupyter.widgets.spelling import clipped, figure, percent, plural, quoted
from djinn_jupyter.widgets.theme import card, part
from djinn_jupyter.widgets.tokens import guesses_plain
from djinn_jupyter.widgets.view import View
from djinn_jupyter.wire.names import label
from djinn_jupyter.wire.nouns import RuleDescription, Transfer
from djinn_jupyter.wire.replies import Finished

PROMPT_SHOWN = 2000
LIVE = "Live while its cell runs. Where the session stands now: %djinn_where"
WHERE = "Where the session stands now: %djinn_where"
TOKENS_TOLD = 256  # 60 bytes of HTML each
REASONS = {
    "length": "the asked number of tokens",
    "eos": "end of text",
    "stop_string": "a stop string",
    "context": "the end of the model's context",
    "slab_full": "no free page for more positions",
}


def result_view(done: Finished, *, restored: Transfer | None = None) -> View:
    """The text of a finished run, why it ended, and what would come next. `restored` is what it had to wait for."""
    reason = REASONS.get(done.reason, done.reason)
    ended = f"ended by {reason}" + (f": {done.detail}" if done.detail else "")
    count = plural(len(done.tokens), "new token")
    prompt = done.prompt_text
    plain = [
        f"finished: {count}, {ended} (session {label(done.session)})",
        f"{clipped(prompt, PROMPT_SHOWN)}|{done.text}",
    ]
    plain += [transfer_line(restored)] if restored is not None else []
    plain += [f"next: {guesses_plain(done.top, 5)}"] if done.top else []
    plain += [rule_line(rule) for rule in done.rules]
    ignored = _ignored(done)
    plain += [ignored] if ignored else []
    work = f"{plural(done.layers_run, 'layer')} in {plural(done.passes, 'pass', 'passes')}"
    html = card(
        part(_text(prompt, _new_tokens(done))),
        part(top_table(done.top), name="the token after that") if done.top else None,
        part(*(div("", rule_line(rule)) for rule in done.rules), name="steering rules") if done.rules else None,
        part(span("dj-soft", ignored)) if ignored else None,
        title="Finished",
        beside=" \u00b7 ".join((count, ended, work, *([transfer_line(restored)] if restored is not None else []))),
        dot="done",
        session=done.session,
    )
    return View(plain="\n".join(plain), html=html)


def running_view(text: str, tokens: int, *, session: str, drawn: str) -> View:
    """What is shown while tokens arrive; replaced by the result or the stop card. A notebook that is closed before
    keeps it, so it says when it was `drawn` and how to see where the session stands."""
    said = f"running at {drawn}, {plural(tokens, 'token')} so far (session {label(session)})"
    html = card(
        part(_text("", text)),
        part(span("dj-soft", LIVE)),
        title=f"Running at {drawn}",
        beside=f"{plural(tokens, 'token')} so far",
        dot="running",
        session=session,
    )
    return View(plain=f"{said}\n{text}\n{LIVE}", html=html)


def broken_off_view(text: str, tokens: int, *, session: str, why: str) -> View:
    """What stays in place of tokens that arrived until their run failed, or until nobody waited for it any more."""
    said = f"after {plural(tokens, 'token')} (session {label(session)})"
    html = card(
        part(_text("", text)) if text else None,
        part(span("dj-soft", f"{why} {WHERE}")),
        title="Broken off",
        beside=f"after {plural(tokens, 'token')}",
        session=session,
    )
    return View(plain=f"broken off {said}\n{text}\n{why} {WHERE}".replace("\n\n", "\n"), html=html)


def progress_view(line: str, before: Sequence[str] = ()) -> View:
    """What an engine says while it starts; what it said `before` stays to be read, as the plan of what will stream."""
    said = part(*(div("dj-soft", earlier) for earlier in before)) if before else None
    return View(plain="\n".join((*before, line)), html=card(said, title=line, dot="running"))


def rule_line(rule: RuleDescription) -> str:
    """What a steering rule did so far, in one line; a rule that changed nothing says so."""
    kind = type(rule.edit).__name__.lower()
    size = "" if rule.mean_relative_size is None else f", mean relative size {figure(rule.mean_relative_size)}"
    books = f"changed {rule.passes_changed} of {plural(rule.passes_met, 'pass', 'passes')}{size}"
    return f"rule {rule.number}, {kind} at {rule.site}{'' if rule.enabled else ' (off)'}: {books}"


def _new_tokens(done: Finished) -> str | Html:
    """The new text; where it is not long, each of its tokens says under the pointer how probable it was."""
    chances = done.log_probabilities
    told = len(chances) == len(done.texts) <= TOKENS_TOLD and None not in chances
    if not told or "".join(done.texts[: _shown(done)]) != done.text:  # a character of several tokens is not cut
        return done.text
    tokens = zip(done.texts[: _shown(done)], chances, strict=False)
    return joined(
        [span("", text, title=f"{quoted(text)} {percent(math.exp(chance or 0.0))}") for text, chance in tokens]
    )


def _shown(done: Finished) -> int:
    """How many tokens are in the text: the end of text is not."""
    return len(done.texts) - (done.reason == "eos")


def _text(prompt: str, new: str | Html) -> Html:
    return div("dj-text", span("dj-soft", clipped(prompt, PROMPT_SHOWN)), span("dj-new", new))


def _ignored(done: Finished) -> str | None:
    """The model's own settings that would have made another text; greedy decoding and lengths would not."""
    telling = [
        default
        for default in done.ignored_defaults
        if default != "do_sample=False" and not default.startswith(("max_new_tokens=", "max_length="))
    ]
    return f"generation defaults of the model not applied: {', '.join(telling)}" if telling else None
