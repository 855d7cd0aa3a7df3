"""The lines of tokens that requests give or name, checked before anything is run. Knows no kind of request."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from djinn_jupyter.engine.interventions.steering import Rule
from djinn_jupyter.engine.session.influences import has_edits
from djinn_jupyter.engine.session.session import Session
from djinn_jupyter.engine.session.table import SessionTable
from djinn_jupyter.errors import IllegalMove, PromptTooLong, UsageError
from djinn_jupyter.wire.nouns import ModelDescription
from djinn_jupyter.wire.texts import in_quotes


def require_fit(model: ModelDescription, tokens: Sequence[int], line: str, *, or_else: str = "") -> None:
    """Raise UsageError or PromptTooLong where the model cannot run these tokens. `line` begins the sentence, and
    `or_else` ends that about the length."""
    context = model.context_length
    if context is not None and len(tokens) > context:
        raise PromptTooLong(
            f"{line} has {len(tokens)} tokens and the model {context} positions; shorten it by "
            f"{len(tokens) - context}{or_else}."
        )
    strange = next((token for token in tokens if token >= model.vocab_size), None)
    if strange is not None:
        raise UsageError(
            f"{line} has the token id {strange}, which is not in the vocabulary: its ids are 0 to "
            f"{model.vocab_size - 1}."
        )


def require_prompt(model: ModelDescription, tokens: Sequence[int], number: int) -> None:
    """Raise the error for which prompt `number` of a request cannot be run."""
    require_fit(model, tokens, f"Prompt {number} (counted from 0)", or_else=", or leave it out")


def require_empty(session: Session, verb: str, opener: str) -> None:
    """Raise IllegalMove where the session has a line of its own, which the request's passes would
    overwrite; `verb` says what is done, and `opener` is the Python function that opens an empty one for them."""
    if session.state != "idle" or session.tokens or session.rules or session.watches:
        raise IllegalMove(
            f"Session {in_quotes(session.name)} has a line of its own; {verb} in an empty one, as {opener} opens."
        )


def under_rules_of(sessions: SessionTable, ruling_name: str | None, session: Session) -> tuple[Rule, ...]:
    """Return the rules in force of the session of that name, whose attention and adapter `session` takes on; no rules
    for None."""
    if ruling_name is None:
        return ()
    ruling = sessions.find(ruling_name)
    session.compute_with(ruling.attention, ruling.adapter)
    return ruling.rules_in_force


def fed_tokens(session: Session) -> tuple[int, ...]:
    """Return the tokens of a session's line that have been fed. Raises UsageError where a pass of their own is not what
    the session computed."""
    if session.pass_log.edited:
        raise UsageError(
            f"Session {in_quotes(session.name)} has edited keys or values in its cache, which are no part of a pass "
            "over its tokens; give the text itself."
        )
    if has_edits(session):
        raise UsageError(
            f"Session {in_quotes(session.name)} has edits made at stops, which are no part of a pass over its tokens; "
            "give the text itself, or make the edit a rule (steer)."
        )
    if not session.committed:
        raise UsageError(
            f"Session {in_quotes(session.name)} has finished no pass yet; run a prompt in it, or give the text."
        )
    return tuple(session.tokens[: session.committed])


def prompts_of(
    sessions: SessionTable,
    model: ModelDescription,
    lines: Iterable[tuple[int, ...] | str],
    *,
    first: int = 0,
    tokens_of: Callable[[Session], tuple[int, ...]] = fed_tokens,
) -> list[tuple[int, ...]]:
    """Return the prompts of a request, numbered from `first` on: the token ids that it gives, or `tokens_of` the
    sessions that it names. Raises the error for which one cannot be run."""
    prompts = []
    for number, line in enumerate(lines, first):
        prompts.append(tokens_of(sessions.find(line)) if isinstance(line, str) else line)
        require_prompt(model, prompts[-1], number)
    return prompts
