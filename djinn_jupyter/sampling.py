"""The settings of sampling, each described once: Python's signature and help, `%djinn_run`, launch.json and the checks
are made from `GivenSampling` (`described.py`). The value that crosses the wire is `wire.nouns.Sampling`.

A new setting is a line here and one in `Sampling`. Where transformers' GenerationConfig has a field of that name, the
engine applies it as `generate` does. `%load_ext` reads this file: the standard library only.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Final, TypedDict

from djinn_jupyter.described import AllowedValues, Description
from djinn_jupyter.errors import UsageError

OF_DRAWING: Final = ("top_k", "top_p", "min_p", "samples")
DRAWN_AS_BEGUN: Final = "a run goes on as it began, and only `run` takes settings of sampling."


class GivenSampling(TypedDict, total=False):
    """The settings as a user gives them; None is left open."""

    temperature: Annotated[
        float | None,
        Description(
            "0 (the default) takes the most probable token",
            metavar="T",
            rule=AllowedValues("A temperature is 0 (greedy) or more", lambda t: 0 <= t < math.inf),
        ),
    ]
    top_k: Annotated[
        int | None,
        Description(
            "sample among the K most probable tokens; default 50, 0 for all",
            metavar="K",
            rule=AllowedValues("top_k counts tokens, 0 for all", lambda k: k >= 0),
        ),
    ]
    top_p: Annotated[
        float | None,
        Description(
            "sample among the tokens that make up this probability",
            metavar="P",
            rule=AllowedValues("top_p is above 0 and at most 1", lambda p: 0 < p <= 1),
        ),
    ]
    min_p: Annotated[
        float | None,
        Description(
            "sample among the tokens with at least this part of the most probable one's probability",
            metavar="P",
            rule=AllowedValues("min_p is 0 to 1", lambda p: 0 <= p <= 1),
        ),
    ]
    repetition_penalty: Annotated[
        float | None,
        Description(
            "divide the logits of tokens that are there already by this; 1 for none",
            metavar="R",
            rule=AllowedValues("repetition_penalty is above 0, 1 for none", lambda r: 0 < r < math.inf),
        ),
    ]
    seed: Annotated[
        int | None,
        Description(
            "of the sampling; default 0",
            metavar="S",
            rule=AllowedValues("A seed has 64 bits", lambda s: -(2**63) <= s < 2**64),
        ),
    ]
    model_defaults: Annotated[bool, Description("apply the model's own generation settings")]


def require_drawn(given: Mapping[str, object], defaults: Mapping[str, str]) -> None:
    """Raise UsageError for settings that choose what is drawn, of a run that draws nothing: `given` are all that it is
    given, `defaults` the model's own, which `model_defaults` applies. A seed is none of them, nor is any but `samples`
    beside a temperature of 0: a loop over temperatures begins there."""
    temperature = given.get("temperature")
    draws = temperature or (given.get("model_defaults") and defaults.get("do_sample") == "True")
    chosen = OF_DRAWING if temperature is None else ("samples",)
    idle = [name for name in chosen if given.get(name) is not None]
    if idle and not draws:
        raise UsageError(
            f"{' and '.join(idle)} {'is' if len(idle) == 1 else 'are'} of a run that draws its tokens, and this one "
            "takes the most probable each time: give a temperature too, or leave that out."
        )
