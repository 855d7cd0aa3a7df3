"""The digest of the wire's structs: changes that alter it, changes that do not; it is the same everywhere."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any, Literal

import msgspec
import pytest

from djinn_jupyter._version import __version__
from djinn_jupyter.errors import MalformedMessage
from djinn_jupyter.wire import codec, protocol
from djinn_jupyter.wire.requests import Hello

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
    first, second = (_digest(("a", tuple[one, ...])) for one in inner)  # type: ignore[valid-type]
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
