"""Weights: matrices by name (`W_U`, `W_Q.5[3]`), and copies of streamed layers. Owns the spelling of names; which
a model has, only the engine knows."""

from __future__ import annotations

import re
from typing import Annotated, Final

from msgspec import Meta

from djinn_jupyter.errors import UnknownSite
from djinn_jupyter.wire.arrays import Array
from djinn_jupyter.wire.bounds import bounded_by
from djinn_jupyter.wire.frozen import Frozen
from djinn_jupyter.wire.limits import Spelling
from djinn_jupyter.wire.nouns import LayerCopy
from djinn_jupyter.wire.reply_base import ReplyBase
from djinn_jupyter.wire.request_base import RequestBase
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
    """Return the WeightName that `text` spells. Raises UnknownSite where it spells none."""
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
    """`values` as the points have it: `x @ values` is the next point, apart from biases. A head or neuron chosen alone
    has no axis of its own."""

    name: str
    values: Array


class ReadWeight(RequestBase[WeightRead], changes=False, wakes_weights=True, whole_layers=True):
    """Read a matrix by name, such as `W_OV.5[3]`. `rows` and `columns` are those kept of its last two axes. With
    `fold_norm` the gain of the norm before it is in it, and the mean of its columns is subtracted where that norm
    subtracts one."""

    name: Spelling
    rows: Indices | None = None
    columns: Indices | None = None
    fold_norm: bool = False


class Copies(ReplyBase):
    """Oldest first. The first number is more than one above `since` where older ones are not kept any more."""

    copies: tuple[LayerCopy, ...]
