"""The result of a run, while it streams and after its end."""

from __future__ import annotations

import math
from collections.abc import Sequence

from djinn_jupyter.api.names import labelled
from djinn_jupyter.link.io_thread import SoFar
from djinn_jupyter.widgets.html import TEXT, Html, card, div, element, joined, meter, part, span
from djinn_jupyter.widgets.lens import top_table
from djinn_jupyter.widgets.memory import transfer_line
from djinn_jupyter.widgets.pictures import scale_legend
from djinn_jupyter.widgets.spelling import clipped, figure, percent, plural, quoted
from djinn_jupyter.widgets.tokens import guesses_plain, share_style
from djinn_jupyter.widgets.view import View
from djinn_jupyter.wire.nouns import RuleDescription, Transfer
from djinn_jupyter.wire.replies import Finished
from djinn_jupyter.wire.texts import label, sendable, shown

PROMPT_SHOWN = 2000
LIVE = "Live while its cell runs."
WHERE = "Where the session stands now:"
TOKENS_TOLD = 256  # tokens with a probability; each takes 60 bytes of HTML
REASONS = {
    "length": "the asked number of tokens",
    "eos": "end of text",
    "stop_string": "a stop string",
    "context": "the end of the model's context",
    "slab_full": "no free page for more positions",
}


Measured = tuple[str, float, float, float]  # a token, its logit, probability and rank


def result_view(
    done: Finished, *, restored: Transfer | None = None, measured: Sequence[Measured] | None = None
) -> View:
    """Show the text of a finished run, the reason it ended, and the most probable tokens where the last one
    was chosen, or of none the next. `restored` is the transfer that it waited for; `measured` are tokens of that
    distribution, None where no effect was asked for."""
    reason = REASONS.get(done.reason, done.reason)
    ended = f"ended by {reason}" + (f": {done.detail}" if done.detail else "")
    count = plural(len(done.tokens), "new token")
    prompt = done.prompt_text
    plain = [
        f"finished: {count}, {ended} (session {label(done.session)})",
        f"{clipped(prompt, PROMPT_SHOWN)}|{done.text}",
    ]
    plain += [transfer_line(restored)] if restored is not None else []
    plain += [f"{_chosen(done)}: {guesses_plain(done.top, 5)}"] if done.top else []
    effect = None if measured is None else _effect(done, measured)
    plain += [effect] if effect else []
    plain += [rule_line(rule) for rule in done.rules]
    ignored = _ignored(done)
    plain += [ignored] if ignored else []
    work = f"{plural(done.layers_run, 'layer')} in {plural(done.passes, 'pass', 'passes')}"
    html = card(
        part(_text(prompt, _new_tokens(done))),
        part(top_table(done.top), name=f"the {_chosen(done)}") if done.top else None,
        part(div("", effect), name="effect") if effect else None,
        part(*(div("", rule_line(rule)) for rule in done.rules), name="steering rules") if done.rules else None,
        part(span("dj-soft", ignored)) if ignored else None,
        title="Finished",
        beside=" \u00b7 ".join((count, ended, work, *([transfer_line(restored)] if restored is not None else []))),
        dot="done",
        session=done.session,
    )
    return View(plain="\n".join(plain), html=html)


def _effect(done: Finished, measured: Sequence[Measured]) -> str:
    """Spell the effect of a run that ended at no stop: there is no edit to compare without, only what is known of
    tokens."""
    said = [
        f"{quoted(token)} {percent(chance)} (logit {figure(logit)}, rank {rank:g})"
        for token, logit, chance, rank in measured
    ]
    apart = [f"{figure(measured[0][1] - measured[1][1])} between their logits"] if len(measured) == 2 else []
    whole = f"; of the {_chosen(done)}: {', '.join([*said, *apart])}" if said else ""
    return f"the run ended at no stop, so that there is no edit to compare without{whole}"


def _chosen(done: Finished) -> str:
    """Return which token the distribution is of. The last new token was not fed, so nothing is known of the one after
    it."""
    return "last new token" if done.tokens else "next token"


def running_view(
    gained: Sequence[tuple[str, float | None]], *, session: str, drawn: str, where: str = "%djinn_where"
) -> View:
    """Show tokens, texts with their probabilities, while they arrive, until the result or the stop card replaces the
    view. A notebook closed before that keeps it, so it states when it was `drawn`, and `where` to see the session's
    present state."""
    tokens, text = len(gained), "".join(text for text, _ in gained)
    said = f"running at {drawn}, {plural(tokens, 'token')} so far (session {label(session)})"
    html = card(
        part(_text("", _streamed(gained)), scale_legend("probability of a token") if _known(gained) else None),
        part(span("dj-soft", f"{LIVE} {WHERE} {where}")),
        title=f"Running at {drawn}",
        beside=f"{plural(tokens, 'token')} so far",
        dot="soft",
        session=session,
    )
    return View(plain=f"{said}\n{text}\n{LIVE} {WHERE} {where}", html=html)


def _known(gained: Sequence[tuple[str, float | None]]) -> bool:
    return any(probability is not None for _, probability in gained)


def _streamed(gained: Sequence[tuple[str, float | None]]) -> Html:
    """Return the tokens, coloured by probability; of many the last."""
    before = "".join(text for text, _ in gained[:-TOKENS_TOLD])
    return joined([before, *(_streamed_token(*one) for one in gained[-TOKENS_TOLD:] if one[0])])


def _streamed_token(text: str, probability: float | None) -> Html:
    if probability is None:
        return element("bdi", text)
    return element("bdi", text, style=share_style(probability), title=f"{quoted(text)} {percent(probability)}")


def broken_off_view(text: str, tokens: int, *, session: str, why: str, where: str = "%djinn_where") -> View:
    """Show the tokens that arrived before their run failed, or before the cell stopped waiting for it."""
    said = f"after {plural(tokens, 'token')} (session {label(session)})"
    html = card(
        part(_text("", text)) if text else None,
        part(span("dj-soft", f"{why} {WHERE} {where}")),
        title="Broken off",
        beside=f"after {plural(tokens, 'token')}",
        session=session,
    )
    return View(plain=f"broken off {said}\n{text}\n{why} {WHERE} {where}".replace("\n\n", "\n"), html=html)


def error_view(error: BaseException) -> View:
    """Show an error that a cell returns, or that a batch has in place of a row. No page takes half a surrogate pair."""
    kind, said = type(error).__name__, "\n".join(map(shown, sendable(str(error)).split("\n")))
    return View(plain=f"{kind}: {said}", html=card(part(said), title=kind))


def progress_view(line: str, before: Sequence[str] = (), *, running: bool = True) -> View:
    """Show a line of an engine's start; lines from `before`, such as the streaming plan, stay visible."""
    said = part(*(div("dj-soft", earlier) for earlier in before)) if before else None
    return View(plain="\n".join((*before, line)), html=card(said, title=line, dot="soft" if running else None))


def receiving_view(progress: SoFar, *, over: bool = False) -> View:
    """Return a card with the progress of the reply as a bar; a line for one that is `over`."""
    if over:
        return View(plain=progress.ended, html=card(title=progress.ended))
    line = f"{progress}; interrupt the kernel to end it"
    return View(plain=line, html=card(part(meter(progress.share)), title=line, dot="soft"))


def _mean_size(size: float) -> str:
    """Spell the mean relative size of a rule's changes; infinite where a changed value was zero."""
    return f"mean relative size {figure(size)}" if math.isfinite(size) else "of a value that was zero"


def rule_line(rule: RuleDescription) -> str:
    """Spell the changes made by a steering rule so far in one line, also for a rule that changed nothing."""
    size = "" if rule.mean_relative_size is None else f", {_mean_size(rule.mean_relative_size)}"
    counts = f"changed {rule.passes_changed} of {plural(rule.passes_met, 'pass', 'passes')}{size}"
    if rule.trouble is not None:
        counts += f"; {plural(rule.passes_refused, 'pass', 'passes')} could not have it: {rule.trouble}"
    return f"rule {rule.number}, {labelled(rule.what)}{'' if rule.enabled else ' (off)'}: {counts}"


def _new_tokens(done: Finished) -> str | Html:
    """Return the new text; if it is short, each token shows its probability on hover."""
    chances = done.log_probabilities
    told = len(chances) == len(done.texts) <= TOKENS_TOLD and None not in chances
    if not told or "".join(done.texts[: _shown(done)]) != done.text:  # else a multi-token character would be cut
        return done.text
    tokens = zip(done.texts[: _shown(done)], chances, strict=False)
    return joined(
        [element("bdi", text, title=f"{quoted(text)} {percent(math.exp(chance or 0.0))}") for text, chance in tokens]
    )


def _shown(done: Finished) -> int:
    """Return the number of tokens in the text, without the end-of-text token."""
    return len(done.texts) - (done.reason == "eos")


def _text(prompt: str, new: str | Html) -> Html:
    return element("div", span("dj-soft", clipped(prompt, PROMPT_SHOWN)), span("dj-new", new), style=TEXT)


def _ignored(done: Finished) -> str | None:
    """Spell the model's ignored generation defaults that would have changed the text; greedy decoding and lengths are
    left out."""
    telling = [
        default
        for default in done.ignored_defaults
        if default != "do_sample=False" and not default.startswith(("max_new_tokens=", "max_length="))
    ]
    return f"generation defaults of the model not applied: {', '.join(telling)}" if telling else None
