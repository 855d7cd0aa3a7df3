"""Crafted files of records: whole, signed, and wrong somewhere inside."""

from __future__ import annotations

import copy
import os
import random
import struct
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import msgspec

from djinn_jupyter.engine.store.records import ARRAY, FORMAT, MAGIC, PREFIX_BYTES, SESSION, RecordReader, digest_of

Record = tuple[bytes, bytes]
EXTREME: Final[list[Any]] = [
    -1, 0, 1, 7, 2**31, 2**53, 2**63 - 1, -(2**63), 2**64 - 1, 1e308, float("nan"), "", "x" * 5000, "resid_post.99",
    None, True, [], {}, [[]] * 50, [2**62, 2**62], b"\xff\xfe", [0] * 40,
]  # fmt: skip

SHAPES: Final = [[2**62, 2**62], [2**63, 0], [0, 2**62], [-1], [1] * 70, [2**40]]


def records_of(path: Path) -> list[Record]:
    """Return the kinds and contents of the records."""
    with path.open("rb") as file:
        reader, found = RecordReader(file), []
        while (at := reader.good) is not None and (record := reader.next()) is not None:
            file.seek(at)
            kind, length = struct.unpack("<4sQ", file.read(12))
            found.append((record.kind, file.read(length)))
            assert kind == record.kind
    return found


def written(records: list[Record]) -> bytes:
    """Return the records as a file, with their valid checksums."""
    parts = [struct.pack("<8sI", MAGIC, FORMAT)]
    for kind, content in records:
        head = struct.pack("<4sQ", kind, len(content))
        digest = digest_of(head)
        digest.update(content)
        parts += [head, content, digest.digest()]
    return b"".join(parts)


def crafted(records: list[Record], chance: random.Random) -> bytes:
    """Return the file with one to three changes, each so that the file is still well formed."""
    made = list(records)
    for _ in range(chance.choice((1, 1, 2, 3))):
        if made:
            chance.choice((_other_value, _other_value, _other_value, _other_head, _other_order))(made, chance)
    return written(made)


def with_session(records: list[Record], change: Callable[[dict[str, Any]], Any]) -> bytes:
    """Return the file with its last image of a session changed so."""
    made = list(records)
    number = max(number for number, (kind, _) in enumerate(made) if kind == SESSION)
    tree = msgspec.msgpack.decode(made[number][1])
    change(tree)
    made[number] = (SESSION, msgspec.msgpack.encode(tree))
    return written(made)


def _other_value(records: list[Record], chance: random.Random) -> None:
    """Change one value in a struct: a label's or a session's."""
    numbers = [number for number, (kind, _) in enumerate(records) if kind != ARRAY]
    if not numbers:
        return
    number = numbers[-1] if chance.random() < 0.8 else chance.choice(numbers)
    kind, content = records[number]
    with suppress(msgspec.DecodeError):  # what was cut before stays cut
        tree = msgspec.msgpack.decode(content)
        _change(tree, chance)
        records[number] = (kind, msgspec.msgpack.encode(tree))


def _other_head(records: list[Record], chance: random.Random) -> None:
    """Change one value in the header of an array."""
    numbers = [number for number, (kind, _) in enumerate(records) if kind == ARRAY]
    if not numbers:
        return
    number = chance.choice(numbers)
    _, content = records[number]
    size = struct.unpack_from("<I", content)[0] if len(content) >= 4 else 1 << 32
    if size > len(content) - 4:
        return
    try:
        head = msgspec.msgpack.decode(content[4 : 4 + size])
    except (msgspec.DecodeError, UnicodeDecodeError):
        return
    if not isinstance(head, dict) or "shape" not in head:
        return
    if chance.random() < 0.5 and isinstance(head["shape"], list):
        head["shape"] = chance.choice([*SHAPES, head["shape"][::-1]])
    else:
        _change(head, chance)
    said = msgspec.msgpack.encode(head)
    length = struct.pack("<I", chance.choice((len(said), len(said), 2**32 - 1)))
    records[number] = (ARRAY, length + said + content[4 + size :])


def _other_order(records: list[Record], chance: random.Random) -> None:
    number = chance.randrange(len(records))
    match chance.choice(("drop", "twice", "first", "kind", "cut")):
        case "drop":
            del records[number]
        case "twice":
            records.insert(chance.randrange(len(records)), records[number])
        case "first":
            records.insert(0, records.pop(number))
        case "kind":
            records[number] = (chance.choice((b"LABL", b"ARRY", b"SESS", b"\0\0\0\0")), records[number][1])
        case "cut":
            records[number] = (records[number][0], records[number][1][: chance.randrange(40)])


def _change(tree: Any, chance: random.Random) -> None:
    """Change one node of a tree of mappings and lists, in place."""
    places = list(_places(tree)) if isinstance(tree, dict | list) else []
    if not places:
        return
    holder, key = chance.choice(places)
    if isinstance(holder, list) and chance.random() < 0.3:
        holder.append(copy.deepcopy(holder[key])) if chance.random() < 0.5 else holder.pop(key)
    else:
        other, at = chance.choice(places)
        values = [*EXTREME, copy.deepcopy(other[at])]
        alike = [value for value in values if type(value) is type(holder[key])]
        holder[key] = chance.choice(alike if alike and chance.random() < 0.8 else values)


def _places(tree: Any) -> Any:
    for key, value in list(tree.items() if isinstance(tree, dict) else enumerate(tree)):
        yield tree, key
        if isinstance(value, dict | list):
            yield from _places(value)


# --------------------------------------------------------------------------------------------- no plain files


def _sparse(path: Path, kind: bytes, gigabytes: int = 7) -> None:
    with path.open("wb") as file:
        file.write(struct.pack("<8sI", MAGIC, FORMAT) + struct.pack("<4sQ", kind, (gigabytes << 30) - 100))
        file.truncate(gigabytes << 30)
    assert path.stat().st_size > PREFIX_BYTES


STRANGE: Final[dict[str, Callable[[Path], None]]] = {
    "a link to nothing": lambda path: path.symlink_to("nowhere"),
    "a link to itself": lambda path: path.symlink_to(path.name),
    "a link to a file": lambda path: path.symlink_to("/etc/hostname"),
    "a pipe": lambda path: os.mkfifo(path),
    "a folder": lambda path: path.mkdir(),
    "seven sparse GiB of an array": lambda path: _sparse(path, b"ARRY"),
    "a sparse GiB of zeros": lambda path: _sparse(path, b"\0\0\0\0", 1),  # which is read, for its checksum
    "nothing": lambda path: path.touch(),
    "text": lambda path: path.write_text("not at all") and None,
}
