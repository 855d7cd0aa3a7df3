"""Messages of the wire as they were before the first step: requests with their replies, as raw bytes in a file, and the
comparison of a reply with one of today."""

from __future__ import annotations

import lzma
import math
import re
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from djinn_jupyter.wire import codec
from djinn_jupyter.wire.arrays import Array

HERE: Final = Path(__file__).parent
MESSAGES: Final = HERE / "messages.msgpack.xz"
CONVERSATION: Final = HERE / "conversation.msgpack.xz"
OF_THE_MOMENT: Final = frozenset(
    "answered by calls checks content created elapsed engine events fingerprint host largest_difference message mode "
    "move notes path pid provenance rate rechecked saved since started statistics threads time tolerance updated user "
    "version".split()
)
A_CLOCK: Final = 10**12  # numbers of stops and editions begin with the moment, in microseconds
CLOSE: Final = {"rel_tol": 1e-3, "abs_tol": 1e-3}  # other kernels, on another processor


class Recorded(msgspec.Struct, frozen=True, kw_only=True):
    """A request and its reply, each as frames; `by` is the test that asked."""

    by: str
    request: list[bytes]
    reply: list[bytes]

    @property
    def kind(self) -> str:
        return str(_body(self.request)["request"])

    @property
    def answered_by(self) -> str:
        return str(_body(self.reply)["reply"])

    @property
    def size(self) -> int:
        return sum(map(len, (*self.request, *self.reply)))

    @property
    def shape(self) -> str:
        """The kinds and the fields of both that are there, whatever their values."""
        return f"{_shape(_body(self.request))} {_shape(_body(self.reply))}"


def of_no_machine(frames: Iterable[bytes | memoryview]) -> list[bytes]:
    """Return frames in which folders of this machine are others of the same length."""
    told = [bytes(frame) for frame in frames]
    for folder in (tempfile.gettempdir(), str(HERE.parents[1]), str(Path.home()), sys.prefix):
        told = [frame.replace(folder.encode(), b"/".ljust(len(folder), b"x")) for frame in told]
    return told


def read(path: Path) -> list[Recorded]:
    return msgspec.msgpack.decode(lzma.decompress(path.read_bytes()), type=list[Recorded])


def write(path: Path, found: Iterable[Recorded]) -> None:
    path.write_bytes(lzma.compress(msgspec.msgpack.encode([*found]), preset=9 | lzma.PRESET_EXTREME))


def distinct(found: Iterable[Recorded], largest: int) -> list[Recorded]:
    """Return the smallest message of each shape, and of a kind that has none up to `largest` bytes the smallest."""
    by_shape: dict[str, Recorded] = {}
    for one in sorted(found, key=lambda one: one.size):
        by_shape.setdefault(one.shape, one)
    kept: list[Recorded] = []
    kinds: set[tuple[str, str]] = set()
    for one in by_shape.values():  # the smallest first
        if one.size <= largest or (one.kind, one.answered_by) not in kinds:
            kept.append(one)
            kinds.add((one.kind, one.answered_by))
    return sorted(kept, key=lambda one: (one.kind, one.answered_by, one.size))


def differences(before: list[bytes], now: list[bytes], *, loosely: bool = False) -> list[str]:
    """Return where a reply differs from the one recorded, as paths: kinds, fields, texts and numbers, of arrays their
    dtype and shape. What belongs to the moment or the machine may differ. `loosely`: in its kind alone."""
    old, new = codec.decode_reply(before).body, codec.decode_reply(now).body
    if type(old) is not type(new) or loosely:
        return [] if type(old) is type(new) else [f"{type(old).__name__} became {type(new).__name__}: {new}"]
    return [*_apart(_plain(old), _plain(new), type(old).__name__)]


def _apart(old: Any, new: Any, path: str) -> Iterator[str]:
    match old, new:
        case dict(), dict():
            for name in old.keys() | new.keys():
                if name not in OF_THE_MOMENT and not re.search("bytes|seconds", name):
                    yield from _apart(old.get(name), new.get(name), f"{path}.{name}")
        case (list() | tuple(), list() | tuple()) if len(old) == len(new):
            for number, (one, other) in enumerate(zip(old, new, strict=True)):
                yield from _apart(one, other, f"{path}[{number}]")
        case int(), int() if min(old, new) > A_CLOCK:
            return
        case float(), float() | int():
            if not (math.isclose(old, new, **CLOSE) or (math.isnan(old) and math.isnan(new))):
                yield f"{path}: {old!r} became {new!r}"
        case _ if old != new:
            yield f"{path}: {old!r} became {new!r}"


def _plain(value: Any) -> Any:
    def of_array(one: Any) -> Any:
        if isinstance(one, Array):
            return {"dtype": one.dtype, "shape": list(one.shape)}
        raise NotImplementedError(type(one))

    return msgspec.to_builtins(value, enc_hook=of_array)


def _body(frames: list[bytes]) -> dict[str, Any]:
    return msgspec.msgpack.decode(frames[0])["body"]


def _shape(value: Any) -> Any:
    """Return a value without its texts and numbers; of a list one entry of each shape."""
    match value:
        case dict():
            tags = {name: value[name] for name in ("request", "reply", "edit", "kind") if name in value}
            return tags | {name: _shape(one) for name, one in sorted(value.items()) if name not in tags}
        case list():
            return sorted({str(_shape(one)) for one in value})
    return type(value).__name__
