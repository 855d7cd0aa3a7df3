"""Weights: matrices by name (`W_U`, `W_Q.5[3]`), and copies of streamed layers. Owns the spelling of names; only the
engine knows which ones a model has."""

from __future__ import annotations

import re
from typing import Annotated, Final

from msgspec import Meta

from djinn_jupyter.errors import UnknownSite
from djinn_jupyter.wire import nouns
from djinn_jupyter.wire.arrays import Array
from djinn_jupyter.wire.base import Frozen, ReplyBase, Tokens, bounded_by
from djinn_jupyter.wire.request_base import RequestBase, SessionRequest, Spelling, Text, require_rest
from djinn_jupyter.wire.sessions import Described
from djinn_jupyter.wire.sites import parse_selector, spell_selector

MODEL_WEIGHTS: Final = ("W_E", "W_pos", "W_U")
HEAD_WEIGHTS: Final = ("W_Q", "W_K", "W_V", "W_O", "W_OV", "W_QK")
MLP_WEIGHTS: Final = ("W_in", "W_gate", "W_out")
LAYER_WEIGHTS: Final = (*HEAD_WEIGHTS, *MLP_WEIGHTS)
Indices = Annotated[tuple[int, ...], Meta(min_length=1), bounded_by("matrix")]
_NAME = re.compile(r"^(?P<name>W_[A-Za-z]+)(?:\.(?P<layer>\d{1,9}))?(?:\[(?P<selector>[-\d:, ]+)\])?$")


class WeightName(Frozen):
    """A matrix of the model. `selector` holds heads, neurons (of `MLP_WEIGHTS`), tokens or positions."""

    name: str
    layer: int | None = None
    selector: tuple[int, ...] | None = None

    @property
    def whole(self) -> str:
        """The name of the whole matrix: without a selector."""
        return self.name if self.layer is None else f"{self.name}.{self.layer}"

    def __str__(self) -> str:
        return self.whole if self.selector is None else f"{self.whole}[{spell_selector(self.selector)}]"


def parse_weight(text: str) -> WeightName:
    """Return the WeightName that `text` spells. Raises UnknownSite for another text."""
    found = _NAME.match(text.strip())
    if found is None or found["name"] not in (*MODEL_WEIGHTS, *LAYER_WEIGHTS):
        raise UnknownSite(
            f"{text!r} is no matrix of a model; there are {', '.join(MODEL_WEIGHTS)} and, with a layer, "
            f"{', '.join(LAYER_WEIGHTS)}: write W_U or W_Q.5[3]."
        )
    name, layer = found["name"], found["layer"]
    if (layer is None) != (name in MODEL_WEIGHTS):
        raise UnknownSite(
            f"{name} is the whole model's: write it without a layer." if layer else f"{name} needs a layer: {name}.0"
        )
    selector = parse_selector(found["selector"]) if found["selector"] else None
    return WeightName(name=name, layer=None if layer is None else int(layer), selector=selector)


class WeightRead(ReplyBase):
    """`values` in the orientation of the points: `x @ values` is the next point, apart from biases. A single selected
    head or neuron has no axis of its own."""

    name: str
    values: Array


class ReadWeight(RequestBase[WeightRead], changes=False, wakes_weights=True, whole_layers=True):
    """Read a matrix by name, such as `W_OV.5[3]`. `rows` and `columns` select from its last two axes. `fold_norm`
    multiplies in the gain of the norm before it, and subtracts the mean of its columns where that norm subtracts a
    mean."""

    name: Spelling
    rows: Indices | None = None
    columns: Indices | None = None
    fold_norm: bool = False


class Copies(ReplyBase):
    """Oldest first. The first number is more than one above `since` where older ones are no longer kept."""

    copies: tuple[nouns.LayerCopy, ...]


class Swapped(ReplyBase):
    """`transfer` is None when nothing had to move."""

    session: nouns.SessionDescription
    transfer: nouns.Transfer | None


class SwapOut(SessionRequest[Swapped], shared="write", browser="asks", changes=False, while_away=True):
    """Move the session's pages and states from the device to `tier`; it returns when it is next needed."""

    tier: nouns.Tier = "host"


class SwapIn(SessionRequest[Swapped], shared="write", browser="asks", changes=False, while_away=True):
    """Move the session back now. Answered at once when it is resident."""


class Rest(
    SessionRequest[Described], shared="write", browser="asks", changes=False, while_away=True, without_rows=True
):
    """Announce that the session will be used again in so many seconds. For a rest of `idle_swap_seconds` or more it
    leaves the device first, and returns before the end."""

    expected_seconds: float

    def __post_init__(self) -> None:
        require_rest(self.expected_seconds)


class Noted(ReplyBase): ...


class Note(
    SessionRequest[Noted],
    shared="read",
    unasked="view",
    changes=False,
    while_running=True,
    while_looking=True,
    at_once=True,
):
    """Report the activity of its notebook, which says how soon the session will be needed: a cell of its kernel runs or
    has ended, it gained or lost the focus, a cell that uses it is about to run, its magics act on this session from now
    on, its kernel is gone."""

    activity: nouns.Activity


class WeightsMoved(ReplyBase):
    """`seconds` is 0 when they were there already."""

    weights: nouns.WeightsStatistics
    seconds: float


class Sleep(RequestBase[WeightsMoved], browser="asks", of_the_engine=True):
    """Move the weights off the device until the next request that needs them. Refused while a session runs."""


class Wake(RequestBase[WeightsMoved], browser="asks", of_the_engine=True): ...


class ReadCopies(RequestBase[Copies], browser="asks", resent="anew"):
    """The completed copies of streamed layers with higher numbers than `since`; the last few thousand are kept."""

    since: Annotated[int, Meta(ge=0)] = 0


class Modules(ReplyBase):
    modules: tuple[nouns.ModuleDescription, ...]


class Tokenized(ReplyBase):
    tokens: tuple[int, ...]
    texts: tuple[str, ...]
    text: str


class ListModules(RequestBase[Modules], browser="asks", resent="anew"): ...


class Tokenize(RequestBase[Tokenized], browser="asks", resent="anew"):
    text: Text
    chat: bool = False


class Detokenize(RequestBase[Tokenized], browser="asks", resent="anew"):
    tokens: Tokens
