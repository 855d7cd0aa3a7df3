"""The current GPU of this process, and a limit that makes it act as a smaller one. Knows nothing of models.

On the CPU no allocator enforces the limit; there the accounting bounds weights and pages by the same amount.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

import psutil
import torch
from torch import Tensor

from djinn_jupyter.errors import UsageError
from djinn_jupyter.machine import main_memory
from djinn_jupyter.units import spell_bytes

LOADED_LATER: Final = 512 << 20  # bytes of kernels and libraries that CUDA loads at first use; no allocator counts them


def make_current(device: torch.device) -> None:
    """Make `device` this thread's current CUDA device, for calls that name none: registering memory, starting kernels
    that are not torch's. On another GPU such a call would take half a gigabyte, or fail."""
    if device.type == "cuda":
        torch.cuda.set_device(device)


def impose(card_memory: int | None, device: torch.device) -> None:
    """Limit this process to the memory that a GPU of `card_memory` bytes would leave it. Call before any allocation."""
    if card_memory is None or device.type != "cuda":
        return
    free, total = torch.cuda.mem_get_info(device)
    taken = total - free + LOADED_LATER
    torch.cuda.set_per_process_memory_fraction(fraction_of(card_memory, total=total, taken=taken), device)


def fraction_of(card_memory: int, *, total: int, taken: int) -> float:
    """Return the fraction of the real card's `total` that this process may use, so that with the bytes already `taken`
    (by other processes and its own context) the card holds at most `card_memory`. All in bytes. Raises UsageError where
    `card_memory` exceeds `total` or leaves nothing."""
    if card_memory > total:
        raise UsageError(
            f"A card of {spell_bytes(card_memory)} cannot be imposed: the one there is has {spell_bytes(total)}."
        )
    if card_memory <= taken:
        raise UsageError(
            f"A card of {spell_bytes(card_memory)} would be full: {spell_bytes(taken)} of the one there is are taken; "
            "impose a larger one, or end what else runs on it."
        )
    return (card_memory - taken) / total


def free_on(device: torch.device, card_memory: int | None) -> int:
    """Return the bytes free on a GPU, or that would be free if it were as small as `card_memory`."""
    free, total = torch.cuda.mem_get_info(device)
    return free if card_memory is None else max(0, min(free, card_memory - (total - free)))


# Memory use as the machine reports it, beside the engine's own accounting. A figure that cannot be read is None.

STATUS: Final = Path("/proc/self/status")


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Resident bytes of this process, in all, anonymous, and mapped from files; bytes in use on the whole device by all
    processes, and its size; of those in use, the bytes this process has reserved, and the others. The device's figures
    are None on the CPU, where the process's figures say more."""

    process_bytes: int
    device_in_use: int | None
    device_total: int | None
    other_bytes: int | None = None
    reserved_bytes: int | None = None
    anonymous_bytes: int | None = None
    mapped_bytes: int | None = None

    @classmethod
    def read(cls, *devices: torch.device) -> Usage:
        """Read the use of the devices, all together."""
        cards = [torch.cuda.mem_get_info(device) for device in devices if device.type == "cuda"]
        total = sum(size for _, size in cards) if cards else None
        in_use = None if total is None else total - sum(free for free, _ in cards)
        reserved = None if in_use is None else sum(map(torch.cuda.memory_reserved, devices))
        others = None if in_use is None or reserved is None else max(0, in_use - reserved)
        own, mapped = own_and_mapped()
        return cls(
            process_bytes=int(psutil.Process().memory_info().rss) if own is None or mapped is None else own + mapped,
            device_in_use=in_use,
            device_total=total,
            other_bytes=others,
            reserved_bytes=reserved,
            anonymous_bytes=own,
            mapped_bytes=mapped,
        )


def own_and_mapped() -> tuple[int | None, int | None]:
    """Return this process's resident bytes that belong to no file, and those that do. None where the system reports one
    sum."""
    try:
        lines = STATUS.read_text().splitlines()
    except OSError:
        return None, None
    sizes = {
        name: int(rest.split()[0]) << 10 for name, _, rest in (line.partition(":") for line in lines if "kB" in line)
    }
    if "RssAnon" not in sizes:
        return None, None
    return sizes["RssAnon"] + sizes.get("RssShmem", 0), sizes.get("RssFile", 0)


def require_alive(device: torch.device) -> None:
    """Wait for the device. Raises RuntimeError where it does no more work for this process: after a fault within a
    kernel every call of CUDA fails until the process ends."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def free_for_pages(device: torch.device, card_memory: int | None = None) -> int:
    """Return the default limit for pages in bytes: free memory less a quarter for activations and other programs."""
    free = free_on(device, card_memory) if device.type == "cuda" else main_memory().available
    return int(free * 3 / 4)


_SAID: Final = ("can't allocate memory", "CUBLAS_STATUS_ALLOC_FAILED", "CUDNN_STATUS_ALLOC_FAILED")


def out_of_memory(error: BaseException) -> bool:
    """True for CUDA's exception class, and for messages without a class: of the CPU allocator, and of libraries that
    find no room for a workspace of their own."""
    return isinstance(error, torch.OutOfMemoryError) or any(words in str(error) for words in _SAID)


# Limit how far the host runs ahead of the device. Knows no session and no model. On CUDA a layer's call returns when
# its kernels are queued. A host that checks for requests between two layers would find one, and the answer, itself a
# kernel or a copy, would wait in the queue behind the rest of a long prefill.

LAYERS_AHEAD: Final = 2  # one runs and one is queued behind it, so the device never idles


class Mark(Protocol):
    """A position in the device's queue."""

    def synchronize(self) -> Any:
        """Return once the device has reached the position."""


class PrefillThrottle:
    """Call `keep` between two layers; it returns once the device is at most two layers behind. Where a call returns
    only after its computing is done (the CPU), `mark` is None and `keep` returns at once."""

    def __init__(self, mark: Callable[[], Mark] | None) -> None:
        self._mark = mark
        self._marks: deque[Mark] = deque()

    @classmethod
    def of(cls, *devices: torch.device) -> PrefillThrottle:
        return cls((lambda: _Events(tuple(map(event_on, devices)))) if devices[0].type == "cuda" else None)

    def keep(self) -> None:
        if self._mark is None:
            return
        self._marks.append(self._mark())
        if len(self._marks) > LAYERS_AHEAD:
            self._marks.popleft().synchronize()


class _Events:
    """A position in the queue of each device."""

    def __init__(self, events: Sequence[Mark]) -> None:
        self._events = events

    def synchronize(self) -> None:
        for event in self._events:
            event.synchronize()


def event_on(device: torch.device) -> Any:
    """Return an event behind what the GPU has been given to compute."""
    event = torch.cuda.Event()
    event.record(torch.cuda.current_stream(device))
    return event


def timed_on(stream: Any) -> Any:
    """Return an event that has a time, behind what the stream has been given."""
    event = torch.cuda.Event(enable_timing=True)
    event.record(stream)
    return event


def leave_out_cudnn_attention() -> None:
    """Let scaled_dot_product_attention use its other kernels only, of which flash and math repeat their bits.

    cuDNN's, which torch prefers on Hopper, does not: for one query over a thousand keys in half precision, plain
    `generate` gave the same bits twice in 2 of 9 steps (H100, torch 2.11, cuDNN 9.19; docs/design.md). It also builds a
    plan for each new length, which takes longer than the pass.
    """
    torch.backends.cuda.enable_cudnn_sdp(False)


def to_home(tensor: Tensor, home: torch.device) -> Tensor:
    """Return the tensor on `home`, bit for bit; the tensor itself where it is there already. All moves between the
    devices of one model's layers are made here."""
    return tensor if tensor.device == home else tensor.to(home)
