"""The messages of the leading rank to the others, and their answers: a stream for each, in order.

`RunLayer` precedes a layer. `GoOn` precedes each collective within it, or `LeaveLayer` where the leader leaves the
layer there. So no rank begins a collective that another one does not.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any, Final

import msgspec
import torch
import torch.distributed as dist
from torch import Tensor

from djinn_jupyter.engine.system.config import EngineConfig
from djinn_jupyter.engine.system.log import LoggedRequest
from djinn_jupyter.wire.base import Frozen


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
    """A tensor that the leader sends next, called `number` by both from then on."""

    number: int
    shape: tuple[int, ...]
    dtype: str


class TapPlace(Frozen):
    """A tap within a layer, for another rank; `along` is the axis divided among the ranks, None where each has the
    whole."""

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
    """The following layers belong to this request, or to none; the log of the ranks names it."""

    asked: LoggedRequest | None


class GoOn(Frozen, tag=True):
    """The leader reaches the next collective."""


class LeaveLayer(Frozen, tag=True):
    """The leader has left the layer, perhaps by an error; nothing of it is kept."""


class MeetTap(Frozen, tag=True):
    """The leader reaches the place of this number."""

    number: int


class KeepValue(Frozen, tag=True):
    """The value there stays."""


class ReplaceValue(Frozen, tag=True):
    """Another value replaces it, and is sent next."""

    form: TensorForm


class ReadRows(Frozen, tag=True):
    """Attention of a cache layer reads the rows [first, end); those from `start` on are new. `sent`: the earlier ones
    come next, because the rank does not have them."""

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


def send(pipe: Connection, message: FromLeader | FromRank) -> None:
    pipe.send_bytes(_TO_BYTES.encode(message))


def next_order(pipe: Connection) -> FromLeader:
    """Wait for the leader's next message. Raises EOFError where it has gone."""
    order: FromLeader = _ORDERS.decode(pipe.recv_bytes())
    return order


def next_answer(pipe: Connection) -> FromRank:
    """Wait for a rank's next message. Raises EOFError where it has gone."""
    answer: FromRank = _ANSWERS.decode(pipe.recv_bytes())
    return answer


# The collectives of the ranks: gloo on the CPU, NCCL on GPUs. Knows no model. A group of its own, beside torch's global
# one. Moved data goes as bytes; sums are the only arithmetic. NCCL chooses its algorithm by size and load unless it is
# pinned, and another algorithm adds in another order.

LONGEST: Final = timedelta(minutes=10)  # that a rank waits for another in a collective
MEETING: Final = timedelta(minutes=1)  # of ranks that are all about to meet
HERE: Final = "127.0.0.1"
PINNED: Final = {"NCCL_ALGO": "Ring", "NCCL_PROTO": "Simple", "NCCL_SOCKET_IFNAME": "lo"}


class RankGroup:
    """This rank's end of the group. Rank 0 sends, as torch's default root, and the others receive."""

    def __init__(
        self,
        meeting: str,
        rank: int,
        ranks: int,
        device: torch.device,
        loss: Callable[[Exception], Exception] = lambda error: error,
    ) -> None:
        """`loss` makes the error of a failed collective, for example where another rank has ended."""
        self.rank, self.ranks, self.device, self._loss = rank, ranks, device, loss
        try:
            self._group = _open(meeting, rank, ranks, device)
        except RuntimeError as error:
            raise loss(error) from error

    def sum(self, part: Tensor) -> None:
        """Replace this rank's tensor by the sum of all ranks', the same bits on each."""
        self._done(self._group.allreduce, [part])

    def send(self, raw: Tensor) -> None:
        """Send a tensor's bytes to all other ranks, which receive it."""
        self._done(self._group.broadcast, [raw])

    def receive(self, form: TensorForm) -> Tensor:
        """Receive the tensor that rank 0 sends."""
        tensor = _made(form, self.device)
        self.send(as_bytes(tensor))
        return tensor

    def gathered(self, part: Tensor, along: int, begin: Callable[[], None]) -> Tensor:
        """Return, on rank 0, the parts that all ranks have of a tensor, in their order along an axis. `begin` is called
        once there is memory for them."""
        parts = [torch.empty_like(part, memory_format=torch.contiguous_format) for _ in range(self.ranks)]
        raw = as_bytes(part)
        begin()
        self._done(self._group.gather, [[as_bytes(one) for one in parts]], [raw])
        return torch.cat(parts, dim=along)

    def give(self, part: Tensor) -> None:
        """Give rank 0 this rank's part of a tensor that it gathers."""
        self._done(self._group.gather, [], [as_bytes(part)])

    def deal(self, parts: Sequence[Tensor]) -> None:
        """Send, from rank 0, each rank the bytes of its part of a tensor."""
        own = torch.empty_like(parts[0])
        self._done(self._group.scatter, [own], [list(parts)])

    def take(self, form: TensorForm) -> Tensor:
        """Receive this rank's part of a tensor from rank 0."""
        part = _made(form, self.device)
        self._done(self._group.scatter, [as_bytes(part)], [])
        return part

    def parts(self, whole: Tensor, along: int) -> Sequence[Tensor]:
        """Return the parts of a tensor by rank: views."""
        return whole.chunk(self.ranks, dim=along)

    def own(self, whole: Tensor, along: int) -> Tensor:
        """Return this rank's part of a tensor: a view."""
        return self.parts(whole, along)[self.rank]

    def close(self) -> None:
        """Leave the group; running collectives end in an error."""
        self._group.abort()

    def _done(self, collective: Callable[..., Any], *arguments: Any) -> None:
        try:
            collective(*arguments).wait()
        except RuntimeError as error:
            raise self._loss(error) from error


def as_bytes(tensor: Tensor) -> Tensor:
    """Return the bytes of a tensor; a contiguous one shares its memory."""
    return tensor.contiguous().view(-1).view(torch.uint8)


def form_of(number: int, tensor: Tensor) -> TensorForm:
    return TensorForm(number=number, shape=tuple(tensor.shape), dtype=str(tensor.dtype).removeprefix("torch."))


def _made(form: TensorForm, device: torch.device) -> Tensor:
    return torch.empty(form.shape, dtype=getattr(torch, form.dtype), device=device)


def _open(meeting: str, rank: int, ranks: int, device: torch.device) -> Any:
    store = dist.FileStore(meeting, ranks)  # type: ignore[attr-defined]  # as below, missing from torch's stubs
    store.set_timeout(MEETING)
    if device.type == "cuda":
        os.environ.update(PINNED)
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = LONGEST
        return dist.ProcessGroupNCCL(store, rank, ranks, options)
    gloo: Any = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
    gloo._timeout = LONGEST
    gloo._devices = [dist.ProcessGroupGloo.create_device(hostname=HERE)]
    return dist.ProcessGroupGloo(store, rank, ranks, gloo)
