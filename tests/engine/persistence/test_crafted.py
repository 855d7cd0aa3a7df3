"""No file keeps an engine from starting: an unusable file is set aside, with a sentence; the rest is there."""

from __future__ import annotations

import copy
import os
import random
import re
import struct
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
import torch

from djinn_jupyter.engine.store import adopted
from djinn_jupyter.engine.store.journal_file import SUFFIX
from djinn_jupyter.engine.store.locked_folder import LOCK
from djinn_jupyter.engine.store.records import ARRAY, FORMAT, MAGIC, PREFIX_BYTES, SESSION, RecordReader, digest_of
from djinn_jupyter.errors import DjinnError
from djinn_jupyter.wire import requests as ask
from tests.engine.desk import Desk
from tests.engine.persistence.crashes import crashed, forget, journal, written
from tests.engine.persistence.roundtrip import pair_of
from tests.engine.persistence.works import edited_and_steered

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


def as_file(records: list[Record]) -> bytes:
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
    return as_file(made)


def with_session(records: list[Record], change: Callable[[dict[str, Any]], Any]) -> bytes:
    """Return the file with its last image of a session changed so."""
    made = list(records)
    number = max(number for number, (kind, _) in enumerate(made) if kind == SESSION)
    tree = msgspec.msgpack.decode(made[number][1])
    change(tree)
    made[number] = (SESSION, msgspec.msgpack.encode(tree))
    return as_file(made)


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


class Left:
    """The journal of an engine that died: `a` (stopped, edited, steered) and, on the disk, `b`."""

    def __init__(self, folder: Path) -> None:
        one, self.other = pair_of("llama")
        journal(one, folder / "alive")
        one.open()
        edited_and_steered(one)
        self.saved = Path(one.ask(ask.SaveCheckpoint(session="a", name="crafted", replace=True)).path)
        self.checkpoint = records_of(self.saved)
        one.open("b")
        one.run((5, 6, 7), 3, "b")
        self.logits = one.logits("b")
        written(one)
        self.folder = crashed(folder / "alive", folder / "dead")
        self.a, self.b = sorted(self.folder.rglob(f"*{SUFFIX}"), key=lambda path: -len(records_of(path)))
        forget(one)

    def found(self, folder: Path) -> Desk:
        """The engine that comes next, which has `b` as it was."""
        journal(self.other, folder)
        assert "b" in self.other.engine.sessions
        self.other.ask(ask.Open(session="b"))
        assert torch.equal(self.other.logits("b"), self.logits)
        return self.other

    def with_file(self, into: Path, content: bytes) -> Path:
        folder = crashed(self.folder, into)
        (folder / self.a.relative_to(self.folder)).write_bytes(content)
        return folder


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Left]:
    left = Left(tmp_path_factory.mktemp("left"))
    yield left
    left.saved.write_bytes(as_file(left.checkpoint))
    left.other.ask(ask.DropCheckpoint(name="crafted"))


def handled(desk: Desk, name: str) -> None:
    """Fail unless each verb answers a session of any content; an error goes to the client that asked."""
    requests: list[Any] = [
        ask.Open(session=name),
        ask.Describe(session=name),
        ask.ReadStop(session=name),
        ask.ReadHistory(session=name),
        ask.Inspect(session=name),
        ask.MeasureEffect(session=name),
        ask.Fork(session=name, name="fork"),
        ask.Resume(session=name, free=True),
        ask.Back(session=name),
        ask.SwapOut(session=name, tier="host"),
        ask.SwapIn(session=name),
    ]
    for request in requests:
        with suppress(DjinnError):
            desk.ask(request)
    desk.close(*(one for one in (name, "fork") if one in desk.engine.sessions))


MANY = pytest.mark.parametrize("count", [40, pytest.param(3000, marks=[pytest.mark.slow, pytest.mark.timeout(7200)])])


@MANY
def test_a_crafted_journal_harms_nobody(count: int, left: Left, tmp_path: Path) -> None:
    records, chance = records_of(left.a), random.Random(count)
    came_back = 0
    for number in range(count):
        folder = left.with_file(tmp_path / str(number), crafted(records, chance))
        desk = left.found(folder)
        others = set(desk.engine.sessions) - {"b"}
        came_back += len(others)
        for name in others:
            handled(desk, name)
        assert len(desk.run((), 1, "b", extend=True, free=True).tokens) == 1
        desk.engine.check_invariants()
        forget(desk)
    assert 0 < came_back < count, "some are well enough, some are not"


@MANY
def test_a_crafted_checkpoint_harms_nobody(count: int, left: Left) -> None:
    chance, desk, restored = random.Random(count), left.other, 0
    for _ in range(count):
        left.saved.write_bytes(crafted(left.checkpoint, chance))
        try:
            desk.ask(ask.RestoreCheckpoint(session="a", name="crafted"))
        except DjinnError:
            continue
        restored += 1
        handled(desk, "a")
        desk.engine.check_invariants()
    assert 0 < restored < count


UNCARRIED: Final[dict[str, tuple[str, Callable[[dict[str, Any]], Any]]]] = {
    "a name": ("Its name has 3000 characters, and a name has 1 to 512", lambda tree: tree.update(name="x" * 3000)),
    "no name": ("Its name has 0 characters", lambda tree: tree.update(name="")),
    "a holder": ("Its holder has 513 characters", lambda tree: tree.update(holder="x" * 513)),
    "a person's holder": ("Its holder has 520", lambda tree: tree.update(holder="person@" + "x" * 513)),
    "a parent": (
        "Its parent has 600 characters",
        lambda tree: tree.update(forked_from={"session": "x" * 600, "stop": None, "tokens": 0}),
    ),
    "a rule's site": (r"length <= 1024 - at `\$\.rules", lambda tree: tree["rules"][0].update(named="x" * 1025)),
    "a rule's condition": (r"length <= 2000 - at `\$\.rules", lambda tree: tree["rules"][0].update(when="x" * 2001)),
    "a breakpoint's condition": (
        r"length <= 2000 - at `\$\.breakpoints",
        lambda tree: tree["breakpoints"][0].update(when="x" * 2001),
    ),
    "a person": (r"length <= 64 - at `key` in `\$\.shares", lambda tree: tree.update(shares={"x" * 65: "read"})),
    "a move": (
        r"at `\$\.moving\.move`",
        lambda tree: tree.update(moving={"move": "../aside/x", "end": "leaves", "origin": None}),
    ),
}


@pytest.mark.parametrize("what", UNCARRIED)
def test_a_session_with_a_name_that_no_request_carries_is_set_aside(
    what: str, left: Left, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    said, change = UNCARRIED[what]
    folder = left.with_file(tmp_path / "dead", with_session(records_of(left.a), change))
    desk = left.found(folder)
    assert set(desk.engine.sessions) == {"b"}
    (aside,) = folder.rglob("aside/*")
    assert re.search(rf"set aside as {re.escape(str(aside))}: .*{said}", caplog.text), caplog.text
    forget(desk)


def test_the_longest_names_come_back_and_can_be_asked_for(left: Left, tmp_path: Path) -> None:
    """Also where another session has the name already: the free one is no longer."""
    name = "x" * 512
    folder = left.with_file(tmp_path / "dead", with_session(records_of(left.a), lambda tree: tree.update(name=name)))
    place = left.b.relative_to(left.folder)
    twice = (folder / place).with_name(f"0000{SUFFIX}")
    twice.write_bytes(with_session(records_of(left.b), lambda tree: tree.update(name=name)))
    desk = left.found(folder)
    others = set(desk.engine.sessions) - {"b"}
    assert others == {name, f"{name[:508]} (2)"}
    for one in others:
        assert desk.ask(ask.Describe(session=one)).session.name == one
        handled(desk, one)
    assert set(desk.engine.sessions) == {"b"}
    forget(desk)


@pytest.mark.parametrize("kind", STRANGE)
def test_what_is_no_session_is_set_aside_and_the_rest_comes_back(
    kind: str, left: Left, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = crashed(left.folder, tmp_path / "dead")
    strange = (folder / left.a.relative_to(left.folder)).with_name(f"0000{SUFFIX}")
    STRANGE[kind](strange)
    desk = left.found(folder)
    assert set(desk.engine.sessions) == {"a", "b"}
    assert not os.path.lexists(strange)
    (aside,) = folder.rglob("aside/*")
    assert aside.name == strange.name
    assert f"set aside as {aside}: " in caplog.text
    forget(desk)


@pytest.mark.parametrize("name", [f"0000{adopted.SUFFIX}", LOCK])
@pytest.mark.parametrize("kind", ["a link to nothing", "a pipe", "a folder"])
def test_neither_does_what_is_no_file_of_pages_or_lock(kind: str, name: str, left: Left, tmp_path: Path) -> None:
    """A folder whose lock is a folder is left alone, with its content."""
    folder = crashed(left.folder, tmp_path / "dead")
    place = (folder / left.a.relative_to(left.folder)).with_name(name)
    place.unlink(missing_ok=True)
    STRANGE[kind](place)
    journal(left.other, folder)
    assert set(left.other.engine.sessions) == (set() if name == LOCK and kind == "a folder" else {"a", "b"})
    forget(left.other)


@pytest.mark.parametrize("kind", [kind for kind in STRANGE if "GiB" not in kind])
def test_what_is_no_checkpoint_is_neither_listed_nor_waited_for(kind: str, left: Left) -> None:
    folder = left.other.engine.persistence.checkpoints.folder
    strange = folder / "strange.djinn"
    STRANGE[kind](strange)
    try:
        listed = {one.name for one in left.other.ask(ask.ListCheckpoints()).checkpoints}
        assert "strange" not in listed
        with pytest.raises(DjinnError):
            left.other.ask(ask.RestoreCheckpoint(session="a", name="strange"))
    finally:
        strange.rmdir() if strange.is_dir() and not strange.is_symlink() else strange.unlink()


def test_an_array_that_memory_cannot_hold_is_refused_before_it_is_read(
    left: Left, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from djinn_jupyter.engine.store import records
    from djinn_jupyter.machine import MainMemory

    monkeypatch.setattr(records, "_PIECE", 64)
    monkeypatch.setattr(records, "main_memory", lambda: MainMemory(total=1000, available=1000, machine_total=1000))
    journal(left.other, crashed(left.folder, tmp_path / "dead"))
    assert "are available" in caplog.text
    forget(left.other)
