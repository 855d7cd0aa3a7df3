"""Prompts of several lengths in one batch: which run together, and how the shorter ones are filled up.

A causal model's rows never see what comes after them, so prompts are filled up at their ends.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Final

ENOUGH: Final = 512  # tokens, beyond which a larger batch saves less than filling up costs
NEAR: Final = 0.8


def batches_of(lengths: Sequence[int], most: int, alike: Callable[[int], Hashable]) -> Iterator[list[int]]:
    """Yield the numbers of prompts that run together: sorted by length, of at most `most` tokens with those that fill
    up, and where there are ENOUGH, of lengths that are near each other. Only lengths for which `alike` is the same are
    together. What was asked alone decides, so that work that goes on later has the same bits."""
    here: list[int] = []
    for number in sorted(range(len(lengths)), key=lambda number: lengths[number], reverse=True):
        longest = lengths[here[0]] if here else 0
        uneven = longest * len(here) >= ENOUGH and lengths[number] < NEAR * longest
        apart = alike(lengths[number]) != alike(longest)
        if here and (uneven or apart or longest * (len(here) + 1) > most):
            yield here
            here = []
        here.append(number)
    if here:
        yield here


def filled(prompts: Sequence[Sequence[int]]) -> list[list[int]]:
    """Return the prompts filled up at their ends to one length, by a token of theirs."""
    length = max(map(len, prompts))
    return [[*tokens, *[tokens[0]] * (length - len(tokens))] for tokens in prompts]
