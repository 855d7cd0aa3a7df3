"""Requests and connections that mean nothing are refused, and nothing is lost."""

from __future__ import annotations

import json
import os
import signal
import socket
from typing import Any

import pytest

from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.editors.dap.protocol import HEADER_BYTES, Unframer, encode
from djinn_jupyter.editors.dap.serving import MOST_OPENING
from djinn_jupyter.errors import MalformedMessage, MessageTooLarge
from tests.dap.conftest import served
from tests.dap.editor import SECONDS, Editor, on_pipes


def test_requests_that_mean_nothing_are_refused_and_nothing_is_lost(editor: Editor) -> None:
    assert editor.ask("threads") == {"threads": []}
    assert "launch or attach first" in editor.refused("setFunctionBreakpoints", breakpoints=[])
    assert "no thread 1" in editor.refused("continue", threadId=1)
    assert "no command 'fly'" in editor.refused("fly")
    assert "prompt once" in editor.refused("launch", model="demo")
    assert "missing required field" in editor.refused("launch", prompt="x")
    assert "max_new_tokens" in editor.refused("launch", model="demo", prompt="x", max_new_tokens="many")
    assert "no such engine" in editor.refused("attach", pid=1)
    assert "no such session" in editor.refused("attach", session="nobody")
    assert editor.refused("launch", model="no/such/model-anywhere", prompt="x")
    editor.send(encode({"seq": 900, "type": "event", "event": "none"}))
    assert "no request" in editor.remark()
    editor.send(b"Content-Length: 7\r\n\r\n{'soup'")
    assert "no JSON" in editor.remark()
    editor.ask("launch", model="demo", prompt="The capital", promt="typo")
    assert "'promt' means nothing" in editor.remark()
    assert "something already" in editor.refused("attach")
    editor.ask("configurationDone")
    editor.event("terminated")
    assert "no stop" in editor.refused("stackTrace", threadId=1)
    assert "stop that is past" in editor.refused("variables", variablesReference=5)
    editor.ask("disconnect")


def test_bytes_that_are_no_header_end_the_conversation(editor: Editor) -> None:
    editor.send(b"GET / HTTP/1.1\r\nHost: here\r\n\r\n")
    assert "no header of the Debug Adapter Protocol" in editor.remark()
    assert editor.ended()


def test_messages_come_whole_however_they_are_cut_or_are_refused() -> None:
    messages = [{"seq": n, "text": "\N{SNOWMAN}" * n} for n in range(4)]
    data = b"".join(encode(message) for message in messages)
    for size in (1, 7, len(data)):
        unframer, found = Unframer(), []
        for start in range(0, len(data), size):
            unframer.feed(data[start : start + size])
            while (message := unframer.take()) is not None:
                found.append(message)
        assert found == messages
    unframer = Unframer()
    unframer.feed(encode({"command": "\ud800"}))
    assert unframer.take() == {"command": "\ud800"}
    unframer = Unframer()
    deep = b"[" * 2**20
    unframer.feed(b"Content-Length: %d\r\n\r\n%s" % (len(deep), deep))
    with pytest.raises(MalformedMessage):
        unframer.take()
    unframer.feed(encode({"seq": 1}))
    assert unframer.take() == {"seq": 1}
    for data, error in [
        (b"x" * (HEADER_BYTES + 1), MalformedMessage),
        (b"Content-Length: " + b"9" * HEADER_BYTES + b"\r\n\r\n", MalformedMessage),
        (b"Content-Length: -4\r\n\r\n", MalformedMessage),
        (b"Content-Length: 99999999999\r\n\r\n", MessageTooLarge),
    ]:
        unframer = Unframer()
        unframer.feed(data)
        with pytest.raises(error):
            unframer.take()
        assert unframer.lost


def test_an_editor_that_vanishes_takes_its_run_with_it(engine: RemoteEngine) -> None:
    editor = on_pipes()
    editor.launch("resid_post.2", prompt="The capital of France is", session="vanishing")
    editor.stopped()
    editor.leave()
    assert "vanishing" not in {session.name for session in engine.sessions()}


def test_an_engine_that_is_killed_is_said(doomed: RemoteEngine) -> None:
    editor = on_pipes()
    editor.launch("resid_post.2", tokens=[3, 4, 5])
    assert editor.stopped() == "resid_post.2"
    os.kill(doomed.entry.pid, signal.SIGKILL)
    editor.event("terminated")
    assert "has ended" in editor.refused("continue", threadId=1)
    editor.ask("disconnect")
    assert editor.ended()
    editor.leave()


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


def test_who_has_not_the_token_is_refused_and_a_port_never_runs_a_models_own_code() -> None:
    for given in [{}, {"token": "wrong"}, {"token": 1}, {"token": "\ud800"}, {"token": ""}]:
        port, _ = served()
        for command in ("launch", "attach"):
            said = refusal(port, request("initialize"), request(command, model="demo", prompt="x", **given))
            assert "token" in said
        for command in ("evaluate", "source", "terminate"):
            said = refusal(port, request("initialize"), request(command, expression="norm"))
            assert "launch or attach first" in said
    port, token = served()
    for command in ("launch", "attach", "threads"):
        assert "begins with `initialize`" in refusal(port, request(command, model="demo", prompt="x", token=token))
    for wish in [True, 1, "true"]:
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
