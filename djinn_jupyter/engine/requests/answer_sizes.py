"""The size that one answer may have: it lies whole in main memory, here and there."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import torch

from djinn_jupyter.amounts import spell_bytes
from djinn_jupyter.errors import UsageError
from djinn_jupyter.wire.bounds import MOST_TOKENS
from djinn_jupyter.wire.codec import MAX_FRAMES

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
    """Raise UsageError where `each` position is to be told by more tokens than one answer may have."""
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
