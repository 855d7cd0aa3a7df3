"""The messages of the leading rank to the others, and their answers: a stream for each, in order.

Before a layer comes `RunLayer`; before each collective within it `GoOn`, or `LeaveLayer` where the leader leaves the
layer there. So a rank begins no collective that another one does not.
"""

from __future__ import annotations

from multiprocessing.connection import Connection
from typing import Any, Final

import msgspec

from djinn_jupyter.engine.config import EngineConfig
from djinn_jupyter.engine.log.logged import LoggedRequest
from djinn_jupyter.wire.frozen import Frozen


class LoadModel(Frozen, tag=True):
    """Load the model of `config`, for the rank `rank` of `ranks` on `device`."""

    config: EngineConfig
    rank: int
    ranks: int
    device: str


class ModelLoaded(Frozen, tag=True):
    """The model is loaded; `identity` is encoded, to be compared with the leader's."""

    identity: bytes


class TakePart(Frozen, tag=True):
    """Keep this rank's part of the layers at these paths: of the matrices at `columns` some outputs, of those at `rows`
    some inputs. Then join the group whose ranks meet at the file `meeting`."""

    layers: tuple[str, ...]
    columns: tuple[str, ...]
    rows: tuple[str, ...]
    meeting: str


class PartTaken(Frozen, tag=True):
    """The rank has its part, and is about to meet the others."""


class TensorForm(Frozen):
    """A tensor that the leader sends next, known to both as `number` from then on."""

    number: int
    shape: tuple[int, ...]
    dtype: str


class TapPlace(Frozen):
    """A tap within a layer, as one rank tells another; `along` is the axis of which each rank has a part, None where
    each has the whole."""

    site: str
    kind: str
    module: str
    key: int | str | None
    ordinal: int
    shared: bool
    in_place: bool
    along: int | None


class RunLayer(Frozen, tag=True):
    """Run a layer. `arguments` are packed; `sent` are tensors among them that come first; the hidden state that the
    layer returns is known as `output`."""

    layer: int
    arguments: Any
    sent: tuple[TensorForm, ...]
    places: tuple[TapPlace, ...]
    output: int


class WorkOn(Frozen, tag=True):
    """The layers that come next are of this request, or of none; the log of the ranks names it."""

    asked: LoggedRequest | None


class GoOn(Frozen, tag=True):
    """The leader comes to the next collective."""


class LeaveLayer(Frozen, tag=True):
    """The leader has left the layer, or an error has; nothing is kept of it."""


class MeetTap(Frozen, tag=True):
    """The leader meets the place of this number."""

    number: int


class KeepValue(Frozen, tag=True):
    """The value met stays."""


class ReplaceValue(Frozen, tag=True):
    """Another value takes its place, and is sent next."""

    form: TensorForm


class ReadRows(Frozen, tag=True):
    """Attention of a cache layer reads the rows [first, end), of which those from `start` on are new. `sent`: the ones
    before come next, because the rank has not got them."""

    first: int
    start: int
    sent: bool
    key_dim: int
    value_dim: int


class RankFailed(Frozen, tag=True):
    """The rank ends for this reason."""

    reason: str


FromLeader = (
    LoadModel | TakePart | WorkOn | RunLayer | GoOn | LeaveLayer | MeetTap | KeepValue | ReplaceValue | ReadRows
)
FromRank = ModelLoaded | PartTaken | RankFailed
_TO_BYTES: Final = msgspec.msgpack.Encoder()
_ORDERS: Final = msgspec.msgpack.Decoder(FromLeader)
_ANSWERS: Final = msgspec.msgpack.Decoder(FromRank)


def tell(pipe: Connection, message: FromLeader | FromRank) -> None:
    pipe.send_bytes(_TO_BYTES.encode(message))


def next_order(pipe: Connection) -> FromLeader:
    """Wait for the leader's next message. Raises EOFError where it has gone."""
    order: FromLeader = _ORDERS.decode(pipe.recv_bytes())
    return order


def next_answer(pipe: Connection) -> FromRank:
    """Wait for a rank's next message. Raises EOFError where it has gone."""
    answer: FromRank = _ANSWERS.decode(pipe.recv_bytes())
    return answer
