"""Bad bytes and requests from an editor, and failures around it: each answered in a sentence, none ends the adapter."""

from __future__ import annotations

import os
import signal

import pytest

from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.editors.dap.protocol import HEADER_BYTES, Unframer, encode
from djinn_jupyter.errors import MalformedMessage, MessageTooLarge
from tests.dap.editor import Editor, on_pipes


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


def test_messages_come_whole_however_they_are_cut() -> None:
    messages = [{"seq": n, "text": "\N{SNOWMAN}" * n} for n in range(4)]
    data = b"".join(encode(message) for message in messages)
    for size in (1, 7, len(data)):
        unframer, found = Unframer(), []
        for start in range(0, len(data), size):
            unframer.feed(data[start : start + size])
            while (message := unframer.take()) is not None:
                found.append(message)
        assert found == messages


def test_a_message_is_written_whatever_text_a_client_has_put_in_it() -> None:
    unframer = Unframer()
    unframer.feed(encode({"command": "\ud800"}))
    assert unframer.take() == {"command": "\ud800"}


def test_a_message_that_is_nested_too_deeply_is_refused_and_the_next_is_read() -> None:
    unframer = Unframer()
    deep = b"[" * 2**20
    unframer.feed(b"Content-Length: %d\r\n\r\n%s" % (len(deep), deep))
    with pytest.raises(MalformedMessage):
        unframer.take()
    unframer.feed(encode({"seq": 1}))
    assert unframer.take() == {"seq": 1}


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"x" * (HEADER_BYTES + 1), MalformedMessage),
        (b"Content-Length: " + b"9" * HEADER_BYTES + b"\r\n\r\n", MalformedMessage),
        (b"Content-Length: -4\r\n\r\n", MalformedMessage),
        (b"Content-Length: 99999999999\r\n\r\n", MessageTooLarge),
    ],
)
def test_a_header_that_is_not_understood_loses_the_stream(data: bytes, error: type[Exception]) -> None:
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
    assert doomed.entry is not None
    os.kill(doomed.entry.pid, signal.SIGKILL)
    editor.event("terminated")
    assert "has ended" in editor.refused("continue", threadId=1)
    editor.ask("disconnect")
    assert editor.ended()
    editor.leave()
