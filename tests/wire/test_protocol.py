"""Requests, replies and kinds are declared once, and both sides say by which they speak."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import typing
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
import pytest

from djinn_jupyter._version import __version__
from djinn_jupyter.errors import MalformedMessage, WireError
from djinn_jupyter.server.messages import digest as digest_of_server
from djinn_jupyter.wire import codec, kinds, protocol
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.greeting import Checked
from djinn_jupyter.wire.logs import Trace
from djinn_jupyter.wire.replies import Cleared
from djinn_jupyter.wire.requests import Hello, Ping
from tests.census.recorded import CONVERSATION, MESSAGES, read
from tests.strangers import add_stranger

SAY = "from djinn_jupyter.wire import protocol; print(protocol.digest())"


def _message(*fields: Any, tag: str = "M", name: str = "Message") -> type:
    return msgspec.defstruct(name, fields, tag=tag, tag_field="request", kw_only=True)


def _digest(*fields: Any, **named: str) -> str:
    return protocol.digest_of((_message(*fields, **named),))


PLAIN = (("a", int), ("b", str | None, None))


@pytest.mark.parametrize(
    "other",
    [
        _digest(("a", int)),
        _digest(*PLAIN, ("stop", int | None, None)),
        _digest(("z", int), PLAIN[1]),
        _digest(("a", float), PLAIN[1]),
        _digest(("a", int, 0), PLAIN[1]),
        _digest(("a", Literal["x", "y"]), PLAIN[1]),
        _digest(("a", tuple[int, str]), PLAIN[1]),
        _digest(*PLAIN, tag="N"),
        _digest(*PLAIN, name="Other"),
    ],
)
def test_a_field_a_type_a_tag_or_a_name_changes_the_digest(other: str) -> None:
    assert other != _digest(*PLAIN)


def test_the_order_of_a_pair_counts_and_that_of_alternatives_does_not() -> None:
    assert _digest(("a", tuple[int, str])) != _digest(("a", tuple[str, int]))
    assert _digest(("a", int | str)) == _digest(("a", str | int))
    assert _digest(("a", Literal["x", "y"])) == _digest(("a", Literal["y", "x"]))


def test_a_field_of_a_struct_within_changes_the_digest() -> None:
    inner = (_message(("x", int), name="Inner"), _message(("x", int), ("y", int), name="Inner"))
    first, second = (_digest(("a", tuple[one, ...])) for one in inner)
    assert first != second


@pytest.mark.parametrize("seed", ["0", "1"])
def test_the_digest_is_the_same_in_every_process(seed: str) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", SAY],
        env={**os.environ, "PYTHONHASHSEED": seed},
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stdout.strip() == protocol.digest()


def test_hello_is_read_whatever_fields_another_version_gave_it() -> None:
    body = {"request": "Hello", "version": "9.9", "holder": "k", "user": "ada", "of tomorrow": {"a": [1]}}
    read = codec.decode_request([msgspec.msgpack.encode({"id": 1, "body": body})]).body
    assert read == Hello(version="9.9", holder="k", user="ada")


@pytest.mark.parametrize("name", ["a\n", "\x1b[2J", "two words", ""])
def test_a_name_of_a_method_that_a_log_would_obey_is_not_read(name: str) -> None:
    with pytest.raises(MalformedMessage, match="methods"):
        codec.decode_request(codec.encode(1, Hello(version="1", holder="k", user="ada", methods=((name, "a"),))))


def test_the_same_version_with_other_messages_differs_and_one_without_a_digest_too() -> None:
    assert protocol.difference(__version__, protocol.digest()) is None
    for other in ("", "0123456789abcdef"):
        assert protocol.difference(__version__, other) == f"both are called {__version__}, but their messages differ"
    assert protocol.difference("0.0.7", protocol.digest()) == f"0.0.7, this is {__version__}"


TABLE: Final = Path(__file__).parent / "declared.txt"


def replies_to(kind: Any) -> list[str]:
    return [one.__name__ for one in typing.get_args(kind.answered_by) or (kind.answered_by,)]


def row(kind: Any) -> str:
    terms = f": {kind.terms}" if str(kind.terms) else ""
    return f"{kind.__name__} -> {', '.join(replies_to(kind))}{terms}"


def test_every_request_is_declared_as_the_table_says() -> None:
    assert sorted(map(row, kinds.known().requests)) == sorted(TABLE.read_text(encoding="utf-8").splitlines())


def test_every_recorded_reply_is_one_that_the_request_declares() -> None:
    named = {kind.__name__: kind for kind in kinds.known().requests}
    for one in (*read(MESSAGES), *read(CONVERSATION)):
        assert one.answered_by in {"Failed", "InPieces"} or one.answered_by in replies_to(named[one.kind]), one.kind


def test_what_is_answered_during_a_run_touches_no_rows_and_what_is_done_anew_changes_nothing() -> None:
    running = [kind.terms for kind in kinds.known().requests if kind.terms.while_running]
    assert all(terms.while_away and terms.without_rows for terms in running)
    assert not any(kind.terms.changes for kind in kinds.known().requests if kind.terms.resent == "anew")


def test_what_a_request_makes_or_saves_is_a_field_of_its_own() -> None:
    named = [
        (kind, field)
        for kind in kinds.known().requests
        for field in (kind.terms.makes, kind.terms.saves)
        if field is not None
    ]
    assert all(field in kind.__struct_fields__ for kind, field in named)
    assert ask.Fork(session="a", name="b").made == ask.Open(session="b").made == "b"


def test_terms_without_a_reply_are_refused() -> None:
    with pytest.raises(TypeError, match="Walk has terms and no reply"):

        class Walk(ask.Run, shared="read"): ...


def test_a_term_that_there_is_not_is_refused() -> None:
    with pytest.raises(TypeError, match="while_walking"):

        class Walk(ask.SessionRequest[Cleared], while_walking=True): ...


HEAD: Final = """
from djinn_jupyter.wire.base import EventBase
from djinn_jupyter.wire.base import ReplyBase
from djinn_jupyter.wire.request_base import SessionRequest
"""
REPLY: Final = f"{HEAD}\nclass EntropyRead(ReplyBase):\n    entropy: float\n"
REQUEST: Final = f"{REPLY}\nclass ReadEntropy(SessionRequest[EntropyRead], shared='read'):\n    layer: int = 0\n"
ASK: Final = f"{REPLY}\nclass Ask(SessionRequest[EntropyRead])"
ASKED: Final = """
import json
from djinn_jupyter import extensions
from djinn_jupyter.server import messages as of_server
from djinn_jupyter.wire import codec, kinds, protocol
from djinn_jupyter.wire.requests import Ping

assert codec.decode_request(codec.encode(1, Ping())).body == Ping()
here = [*kinds.of_methods().items()]
known = {method.name: [kind.__name__ for kind in its.all] for method, its in here if not method.is_ours}
print(json.dumps({
    "known": known,
    "digests": {name: digest for name, digest in protocol.method_digests().items() if name in known},
    "left out": sorted(extensions.troubles().values()),
    "core": protocol.digest(),
    "server": of_server.digest(),
}))
"""


def asked(folder: Path, code: str = ASKED) -> Any:
    """Return what a process says that has the distributions of this folder."""
    path = os.pathsep.join([str(folder), *sys.path])
    ran = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    told = json.loads(ran.stdout)
    assert (told["core"], told["server"]) == (protocol.digest(), digest_of_server())
    return told


def test_a_stranger_adds_its_kinds_and_changes_no_other_digest(tmp_path: Path) -> None:
    event = f"{REQUEST}\nclass EntropyProgressed(EventBase):\n    done: int\n"
    add_stranger(tmp_path, "entropy", "djinn_entropy", {"request": event})
    told = asked(tmp_path)
    assert told["known"] == {"entropy": ["ReadEntropy", "EntropyRead", "EntropyProgressed"]}
    assert len(told["digests"]["entropy"]) == protocol.DIGEST_CHARACTERS
    assert told["left out"] == []


def test_of_two_strangers_with_one_tag_neither_is_used(tmp_path: Path) -> None:
    for name in ("one", "two"):
        add_stranger(tmp_path, name, f"djinn_{name}", {"request": REQUEST})
    add_stranger(tmp_path, "three", "djinn_three", {"request": REQUEST.replace("Entropy", "Other")})
    told = asked(tmp_path)
    assert told["known"] == {"three": ["ReadOther", "OtherRead"]}
    assert told["left out"] == [
        f"The method {this} (djinn_{this} of {this} 1.0) is left out, because its message 'ReadEntropy' is also that "
        f"of {other} (djinn_{other} of {other} 1.0): uninstall one of them, and begin the process anew."
        for this, other in (("one", "two"), ("two", "one"))
    ]


def test_a_tag_of_the_core_or_of_ours_stays_theirs(tmp_path: Path) -> None:
    taken = (
        ("ReadEntropy", "Ping"),
        ("EntropyRead", "Failed"),
        ("ReadEntropy", "ReadHeads"),
        ("EntropyRead", "HeadsRead"),
    )
    for number, (name, other) in enumerate(taken):
        text = REQUEST.replace(name, other)
        for free in {"ReadEntropy", "EntropyRead"} - {name}:
            text = text.replace(free, f"{free}{number}")
        add_stranger(tmp_path, f"entropy{number}", f"djinn_entropy{number}", {"request": text})
    told = asked(tmp_path)
    assert told["known"] == {}
    assert len(told["left out"]) == len(taken)
    for (_, other), why in zip(taken, told["left out"], strict=True):
        ours = "heads (djinn_jupyter.methods.heads of djinn-jupyter" if "Heads" in other else "djinn-jupyter"
        assert f"its message {other!r} is also that of {ours}" in why


def test_messages_that_cannot_be_read_leave_their_method_out(tmp_path: Path) -> None:
    """One tag twice, no such type, no reply, no such term."""
    wrong = (
        (f"{ASK}: ...\n{ASK.replace('Ask', 'Again')[:-1]}, tag='Ask'): ...", "its messages cannot be read (TypeError"),
        (f"{ASK}:\n    a: 'NoSuchType'", "its messages cannot be read (NameError"),
        (f"{HEAD}\nclass Ask(SessionRequest[int]): ...", "(TypeError: Ask2 is answered by <class 'int'>, which is no"),
        (f"{ASK[:-1]}, shared='all'): ...", "(ValidationError: Invalid enum value 'all' - at `$.shared`)"),
    )
    for number, (request, _) in enumerate(wrong):
        own = request.replace("Ask", f"Ask{number}").replace("EntropyRead", f"EntropyRead{number}")
        add_stranger(tmp_path, f"entropy{number}", f"djinn_entropy{number}", {"request": own})
    told = asked(tmp_path)
    assert told["known"] == {}
    assert len(told["left out"]) == len(wrong)
    for (_, why), said in zip(wrong, told["left out"], strict=True):
        assert why in said


def test_an_import_that_was_interrupted_leaves_no_kind_behind(tmp_path: Path) -> None:
    once = "import sys\nif not hasattr(sys, 'once'):\n    sys.once = True\n    raise KeyboardInterrupt"
    add_stranger(tmp_path, "entropy", "djinn_entropy", {"request": f"{REQUEST}\n{once}"})
    first = "from djinn_jupyter.wire import kinds\ntry: kinds.known()\nexcept KeyboardInterrupt: pass\n"
    told = asked(tmp_path, f"{first}else: raise SystemExit\n{ASKED}")
    assert told["known"] == {"entropy": ["ReadEntropy", "EntropyRead"]}
    assert told["left out"] == []


def test_the_core_and_each_method_of_ours_have_their_own() -> None:
    assert Hello in kinds.core().requests
    of_methods = {method.name: its for method, its in kinds.of_methods().items()}
    assert [kind.__name__ for kind in of_methods["heads"].all] == ["ReadHeads", "ReadHead", "HeadsRead", "HeadRead"]
    assert all(kinds.method_of(kind) is None for kind in kinds.core().all)
    assert Checked in of_methods["sweep"].replies  # of the core, and of two methods
    assert kinds.known().replies.count(Checked) == 1


def test_a_digest_of_a_method_that_is_missing_or_another_keeps_no_other_apart() -> None:
    here = protocol.method_digests()
    assert protocol.apart(here) == {}
    others = {name: digest for name, digest in here.items() if name != "heads"} | {"sweep": "another", "more": "a"}
    assert protocol.apart(others) == {"heads": "lacks", "sweep": "has another version of", "more": "alone has"}


IDS = ("3f" * 16, "9b" * 8)


def test_a_trace_comes_as_it_went() -> None:
    trace = Trace(*IDS, "%djinn_run")
    assert codec.decode_request(codec.encode(1, Ping(), trace)).trace == trace


@pytest.mark.parametrize(
    "trace",
    [
        Trace(*IDS, "%djinn_run\n"),
        Trace(*IDS, "%djinn_run\nINFO Close began"),
        Trace(*IDS, "x" * 65),
        Trace("3F" * 16, IDS[1]),
        Trace(IDS[0], IDS[1][1:]),
        Trace(IDS[0], f"{IDS[1]}\n"),
    ],
)
def test_what_would_forge_a_line_of_the_log_is_no_message(trace: Trace) -> None:
    with pytest.raises(WireError):
        codec.decode_request(codec.encode(1, Ping(), trace))


def test_an_end_of_line_behind_the_ids_is_no_part_of_them() -> None:
    envelope = codec.Envelope(id=1, body=Ping(), traceparent=f"{Trace(*IDS).traceparent}\n")
    with pytest.raises(WireError):
        codec.decode_request([msgspec.msgpack.encode(envelope)])
