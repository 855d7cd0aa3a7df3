"""What cannot be swept is refused in a sentence."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from djinn_jupyter.errors import DjinnError, IllegalMove, InvalidCondition, InvalidEdit, UnknownSite, UsageError
from djinn_jupyter.methods.sweep.request import Noise, Sweep
from djinn_jupyter.wire.edits import PatchFrom, Scale
from tests.engine.desk import Desk, desk_of
from tests.engine.sweeps.test_sweeps import CLEAN, CORRUPTED, LAYERS, METRIC, swept


@pytest.fixture
def desk() -> Iterator[Desk]:
    desk = desk_of("llama", layers=LAYERS)
    yield desk
    desk.close_all()


@pytest.mark.parametrize(
    ("fields", "error", "said"),
    [
        ({"metrics": ("norm",)}, InvalidCondition, "A metric reads logits"),
        ({"metrics": ("logit(5) > 2",)}, InvalidCondition, "a metric has to be a number"),
        ({"metrics": ("1 + 2",)}, InvalidCondition, "reads no logit"),
        ({"metrics": ("logit(5",)}, InvalidCondition, r"not an expression such as `logit\(' Rome'\)"),
        ({"metrics": ("loss",)}, InvalidCondition, "A metric knows no 'loss'"),
        ({"metrics": ("mean(logit(5))",)}, InvalidCondition, "A metric knows no function 'mean'"),
        ({"metrics": ("logit(5) ** 2",)}, InvalidCondition, "not allowed in a metric"),
        ({"metrics": ("logit(5) / 0",)}, InvalidCondition, "The metric .* could not be evaluated: float division"),
        (
            {"metrics": ("1 if logit(5) else 2",)},
            InvalidCondition,
            "is a number, and what `if`.* has to be true",
        ),
        ({"metrics": ("logit(99999)",)}, InvalidCondition, "no token 99999"),
        ({"metrics": (f"max(logit(5), 1{'0' * 400})",)}, InvalidCondition, "too large for a number"),
        ({"metrics": ("logit(5, 6)",)}, InvalidCondition, "logit takes one token"),
        ({"site": "resid_past"}, UnknownSite, "'resid_past' is none. Did you mean 'resid_post'?"),
        ({"site": "logits"}, UnknownSite, "'logits' is none"),
        ({"site": "resid_post.2"}, UsageError, "leave the layer out"),
        ({"site": "resid_post", "over": ("position",)}, UsageError, "name one, as in resid_post.4"),
        ({"site": "resid_post", "over": ("layer", "head")}, UsageError, "needs a site that has heads"),
        ({"over": ("layer", "layer")}, UsageError, "names one twice"),
        ({"clean": CLEAN[:-1]}, UsageError, "11 tokens and the corrupted one 12"),
        ({"clean": CLEAN[:1]}, UsageError, "1 token and the corrupted one 12"),
        ({"clean": None}, UsageError, "needs a clean line"),
        ({"clean": (*CLEAN[:-1], 128)}, UsageError, "not in the vocabulary: its ids are 0 to 127"),
        ({"clean": "nobody"}, UsageError, "no session 'nobody'"),
        ({"clean": "a"}, UsageError, "has no tokens yet"),
        ({"edit": PatchFrom(session="b")}, InvalidEdit, "patches from its clean line"),
        ({"edit": Scale(factor=float("nan"))}, InvalidEdit, "not finite"),
        ({"edit": Scale(factor=1.0), "over": ("layer", "coef"), "coefs": (0, float("nan"))}, UsageError, "nan is none"),
        ({"noise": Noise(positions=(1,), scale=float("inf"))}, UsageError, "inf is none"),
    ],
)
def test_what_cannot_be_swept_is_refused_in_a_sentence(
    desk: Desk, fields: dict[str, Any], error: type[DjinnError], said: str
) -> None:
    with pytest.raises(error, match=said):
        swept(desk, **fields)


def test_a_session_with_a_line_of_its_own_is_not_swept_in(desk: Desk) -> None:
    desk.open("a")
    desk.run(CORRUPTED, 0)
    with pytest.raises(IllegalMove, match="sweep in an empty one"):
        desk.ask(Sweep(session="a", corrupted=CORRUPTED, clean=CLEAN, site="z", over=("layer",), metrics=(METRIC,)))
