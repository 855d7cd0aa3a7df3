"""The limits of what a request may say, and the settings with which nothing can be computed."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from djinn_jupyter.errors import UsageError
from djinn_jupyter.wire.bounds import MOST_TOKENS as MOST_TOKENS
from djinn_jupyter.wire.bounds import Positions as Positions
from djinn_jupyter.wire.bounds import SomeTokens as SomeTokens
from djinn_jupyter.wire.bounds import Tokens as Tokens
from djinn_jupyter.wire.naming import PERSONAL, SHARED, person_of
from djinn_jupyter.wire.nouns import Sampling

LONGEST_NAME = 512
Name = Annotated[str, Meta(min_length=1, max_length=LONGEST_NAME)]
OwnName = Annotated[Name, PERSONAL]
SessionName = Annotated[OwnName, SHARED]
NotebookPath = Annotated[str, Meta(min_length=1, max_length=4096), PERSONAL]
Spelling = Annotated[str, Meta(min_length=1, max_length=1024)]
ConditionText = Annotated[str, Meta(min_length=1, max_length=2000)]
Text = Annotated[str, Meta(max_length=4_000_000)]
LONGEST_STOP = 4096
StopStrings = Annotated[tuple[Annotated[str, Meta(min_length=1, max_length=LONGEST_STOP)], ...], Meta(max_length=64)]
OneOrTwo = Annotated[tuple[Annotated[int, Meta(ge=0)] | Name, ...], Meta(min_length=1, max_length=2)]
Chosen = Annotated[tuple[Annotated[int, Meta(ge=0)] | Name, ...], Meta(max_length=1000)]
COLDEST = 1e-30
"""The largest logit of float16, 65,504, times the largest penalty and divided by this, is 6.6e37,
and float32 ends at 3.4e38."""
MOST_PENALTY = 1e3
Seed = Annotated[int, Meta(ge=-(2**63))]  # no message carries a number of 2**64 or more
LARGEST_SINGLE = (2 - 2**-23) * 2.0**127  # the largest float32; a rule with a larger number makes infinity
LONGEST_REST = 365 * 86400.0  # seconds
Count = Annotated[int, Meta(ge=1, le=1_000_000)]


def is_carried(name: str) -> bool:
    """Return whether a request carries this name of an engine's, in which a person's own is behind the person."""
    person = person_of(name)
    own = name if person is None else name.removeprefix(f"{person}@")
    return 1 <= len(own) <= LONGEST_NAME


def require_rest(seconds: float) -> None:
    """Raise UsageError for a rest that cannot last so long; a NaN is no length."""
    if not 0.0 <= seconds <= LONGEST_REST:
        raise UsageError(f"A rest lasts 0 to {LONGEST_REST:.0f} seconds (a year); it cannot last {seconds}.")


def require_computable(sampling: Sampling) -> None:
    """Raise UsageError for a value that overflows 32-bit numbers."""
    if 0 < sampling.temperature < COLDEST:
        raise UsageError(
            f"A temperature is 0 (greedy) or at least {COLDEST:g}, for logits divided by less leave 32-bit numbers; "
            f"it cannot be {sampling.temperature!r}."
        )
    penalty = sampling.repetition_penalty
    if penalty is not None and not 1 / MOST_PENALTY <= penalty <= MOST_PENALTY:
        raise UsageError(
            f"repetition_penalty is {1 / MOST_PENALTY:g} to {MOST_PENALTY:g}, 1 for none; it cannot be {penalty!r}."
        )
