"""A port of the adapter, as other programs and pages of this machine find it: nothing but an editor with the token is
let in, and nothing else keeps a place."""

from __future__ import annotations

import json
import socket
from typing import Any

import pytest

from djinn_jupyter.editors.dap.protocol import Unframer, encode
from djinn_jupyter.editors.dap.serving import MOST_OPENING
from tests.dap.conftest import served
from tests.dap.editor import SECONDS

LAUNCH = {"model": "no/such/model-anywhere", "prompt": "x", "trust_remote_code": True}


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=SECONDS)


def request(command: str, **arguments: Any) -> bytes:
    return encode({"seq": 1, "type": "request", "command": command, "arguments": arguments})


def rest(connection: socket.socket) -> list[dict[str, Any]]:
    """Return all messages until the adapter ends the connection."""
    unframer, found = Unframer(), []
    try:
        while more := connection.recv(65536):
            unframer.feed(more)
    except ConnectionResetError:
        pass
    while (message := unframer.take()) is not None:
        found.append(message)
    return found


def answers(port: int, *sent: bytes) -> list[dict[str, Any]]:
    """Send requests, then leave; return the adapter's responses."""
    with connect(port) as connection:
        connection.sendall(b"".join(sent) + request("disconnect"))
        return [one for one in rest(connection) if one["type"] == "response"]


def refusal(port: int, *sent: bytes) -> str:
    *_, said, _ = answers(port, *sent)
    assert not said["success"]
    return str(said["message"])


POST = b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: text/plain\r\nContent-Length: %d\r\n\r\n%s"
BODY = json.dumps({"seq": 1, "type": "request", "command": "launch", "arguments": LAUNCH}).encode()


@pytest.mark.parametrize(
    "first",
    [
        POST % (len(BODY), BODY),
        b"Host: here\r\nContent-Length: %d\r\n\r\n%s" % (len(BODY), BODY),
        b"Content-Length: %d\r\nCookie: x\r\n\r\n%s" % (len(BODY), BODY),
        b"GET / HTTP/1.1\r\n",
        b"G",
        b"\x16\x03\x01\x02\x00\x01",
        b"\xff\x00\x00\x00\x00\x00\x00\x00\x01\x7f",
        b"\x00",
        b"\r\n",
        b"Content-Length: 3",
        b"Content-Type: " + b"x" * 5000,
    ],
)
def test_what_is_no_message_ends_the_connection_at_once(first: bytes) -> None:
    port, _ = served()
    with connect(port) as connection:
        connection.sendall(first)
        if first == b"Content-Length: 3":  # half a header waits, but not for another protocol
            connection.sendall(b"\r\nUpgrade: websocket")
        said = rest(connection)
    assert [one["event"] for one in said] == ["output"]
    assert "no header of the Debug Adapter Protocol" in said[0]["body"]["output"]


@pytest.mark.parametrize("given", [{}, {"token": "wrong"}, {"token": 1}, {"token": "\ud800"}, {"token": ""}])
def test_who_has_not_the_token_is_refused(given: dict[str, Any]) -> None:
    port, _ = served()
    for command in ("launch", "attach"):
        said = refusal(port, request("initialize"), request(command, model="demo", prompt="x", **given))
        assert "token" in said
    for command in ("evaluate", "source", "terminate"):
        said = refusal(port, request("initialize"), request(command, expression="norm"))
        assert "launch or attach first" in said


def test_the_first_request_is_initialize() -> None:
    port, token = served()
    for command in ("launch", "attach", "threads"):
        assert "begins with `initialize`" in refusal(port, request(command, model="demo", prompt="x", token=token))


@pytest.mark.parametrize("wish", [True, 1, "true"])
def test_a_port_never_runs_a_models_own_code(wish: object) -> None:
    port, token = served()
    with connect(port) as connection:
        launch = request("launch", **LAUNCH | {"trust_remote_code": wish}, token=token)
        connection.sendall(request("initialize") + launch + request("disconnect"))
        said = [one for one in rest(connection) if one.get("command") == "launch"]
    assert "never does" in said[0]["message"]
    assert not said[0]["success"]


def test_a_connection_without_the_token_ends_and_takes_no_place() -> None:
    port, _ = served(opening_seconds=0.3)
    idle = [connect(port) for _ in range(MOST_OPENING)]
    idle[0].sendall(request("initialize"))
    assert [one["command"] for one in rest(idle[0])] == ["initialize"]
    assert [rest(one) for one in idle[1:]] == [[]] * (MOST_OPENING - 1)
    assert [one["command"] for one in answers(port, request("initialize"))] == ["initialize", "disconnect"]
    for one in idle:
        one.close()


def test_the_oldest_connection_without_the_token_makes_room_for_the_next() -> None:
    port, _ = served()
    idle = [connect(port) for _ in range(2 * MOST_OPENING)]
    assert [rest(one) for one in idle[:MOST_OPENING]] == [[]] * MOST_OPENING
    assert [one["command"] for one in answers(port, request("initialize"))] == ["initialize", "disconnect"]
    for one in idle:
        one.close()
