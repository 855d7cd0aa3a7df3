"""Bounds of requests, checked before anything is run: the tokens that they give or name, and the size that one
answer may have. Knows no kind of request."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

import torch

from djinn_jupyter.engine.passes.breakpoints import Rule
from djinn_jupyter.engine.session.reports import has_edits
from djinn_jupyter.engine.session.session import Session
from djinn_jupyter.engine.session.table import SessionTable
from djinn_jupyter.errors import IllegalMove, PromptTooLong, UsageError
from djinn_jupyter.units import spell_bytes
from djinn_jupyter.wire.base import MOST_TOKENS
from djinn_jupyter.wire.codec import MAX_FRAMES
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
    if len(tokens) > (model.context_length or len(tokens)) or max(tokens, default=0) >= model.vocab_size:
        require_fit(model, tokens, f"Prompt {number} (counted from 0)", or_else=", or leave it out")


def require_empty(session: Session, verb: str, opener: str) -> None:
    """Raise IllegalMove where the session has its own tokens, which the request's passes would overwrite; `verb` names
    the work, and `opener` the Python function that opens an empty session for it."""
    if session.state != "idle" or session.tokens or session.rules or session.watches:
        raise IllegalMove(
            f"Session {in_quotes(session.name)} has a line of its own; {verb} in an empty one, as {opener} opens."
        )


def under_rules_of(sessions: SessionTable, ruling_name: str | None, session: Session) -> tuple[Rule, ...]:
    """Return the rules in force of the named session, whose attention and adapter `session` adopts; none for None."""
    if ruling_name is None:
        return ()
    ruling = sessions.find(ruling_name)
    session.compute_with(ruling.attention, ruling.adapter)
    return ruling.rules_in_force


def require_unedited(session: Session) -> None:
    """Raise UsageError where a session has edits, which are no part of another pass over its tokens."""
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


def fed_tokens(session: Session) -> tuple[int, ...]:
    """Return the tokens of a session that have been fed. Raises UsageError where a pass of their own would differ from
    what the session computed."""
    require_unedited(session)
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
    """Return the prompts of a request, numbered from `first` on: its token ids, or `tokens_of` the sessions that it
    names. Raises the error of a prompt that cannot be run."""
    prompts = []
    for number, line in enumerate(lines, first):
        prompts.append(tokens_of(sessions.find(line)) if isinstance(line, str) else line)
        require_prompt(model, prompts[-1], number)
    return prompts


ANSWERED_LOGITS: Final = 2 * 2**30  # bytes in fp32 of one answer
ANSWERED_VALUES: Final = 4 * 2**30  # bytes as computed
ANSWERED_ARRAYS: Final = MAX_FRAMES - 1
TOKEN_BYTES: Final = 200  # of a token with its probability, in Python; 60 in a message
ANSWERED_TOKENS: Final = 2**18
MOST_STANDING: Final = 1000  # breakpoints, rules, watches or edits of one session: its descriptions have them all


class Room:
    """The bytes that the values of one answer may still take."""

    def __init__(self) -> None:
        self._left = ANSWERED_VALUES

    def take(self, size: int) -> None:
        """Take so many bytes. Raises UsageError where they are not left."""
        self._left -= size
        if self._left < 0:
            raise UsageError(
                f"The values at these sites are more than the {spell_bytes(ANSWERED_VALUES)} of one answer: ask for "
                "those of fewer sites at a time."
            )


def require_few_passes(site: str, passes: int, size: int) -> None:
    """Raise UsageError where a watch has recorded more passes, or bytes, than one answer may have."""
    if passes > ANSWERED_ARRAYS or size > ANSWERED_VALUES:
        raise UsageError(
            f"The watch of {site} has recorded {spell_bytes(size)} in {passes:,} passes, more than the "
            f"{spell_bytes(ANSWERED_VALUES)} or {ANSWERED_ARRAYS:,} passes of one answer: watch anew (`fresh=True`), "
            "and read it after fewer."
        )


def require_few_standing(what: str, count: int, positions: Iterable[tuple[int, ...] | None] = ()) -> None:
    """Raise UsageError where a session that has `count` of these has no room for another, or where they and
    the other name more `positions` than a description may have."""
    if count >= MOST_STANDING:
        raise UsageError(f"The session has {count:,} {what}, the most that one may have: take some away first.")
    if sum(len(one) for one in positions if one is not None) > MOST_TOKENS:
        raise UsageError(
            f"The {what} of the session would name more than {MOST_TOKENS:,} positions in all: take some away first."
        )


def require_few_tokens(positions: int, each: int) -> None:
    """Raise UsageError where `each` position would need more tokens than one answer may have."""
    if positions * each > ANSWERED_TOKENS:
        raise UsageError(
            f"{each:,} tokens at each of {positions:,} positions are more than the {ANSWERED_TOKENS:,} of one answer: "
            "ask for fewer of either."
        )


def require_answerable(positions: int, vocabulary: int) -> None:
    """Raise UsageError for more logits than one answer may have."""
    row = vocabulary * torch.float32.itemsize
    if positions * row > ANSWERED_LOGITS:
        raise UsageError(
            f"The logits of all {positions:,} positions are {spell_bytes(positions * row)}, more than the "
            f"{spell_bytes(ANSWERED_LOGITS)} of one answer: ask for those of at most {ANSWERED_LOGITS // row:,} "
            "positions, or for the loss, which is a number for each."
        )
