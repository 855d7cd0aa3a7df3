"""An editor to speak to the adapter with: dap-python's client, and the protocol's own schema over every message.

dap-python 0.5 cannot read responses and events without a body, nor the numbers of hit breakpoints, which the protocol
has as integers; those are kept from it. All else goes through its typed models. The schema is the one debugpy ships.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

import dap.client
import dap.handler
import debugpy
from jsonschema import Draft4Validator
from jsonschema.validators import validator_for

SCHEMA = json.loads(
    (Path(debugpy.__file__).parent / "_vendored/pydevd/_pydevd_bundle/_debug_adapter/debugProtocol.json").read_text()
)
SECONDS = 120.0  # after which nothing is expected any more; an engine starts in some of these


def conform(message: dict[str, Any]) -> None:
    """Fail if a message of the adapter breaks the protocol's schema."""
    kind = message["type"].capitalize()
    name = message.get("command", message.get("event"))
    definition = f"{name[0].upper()}{name[1:]}{kind}"
    if message["type"] == "response" and not message["success"]:
        definition = "ErrorResponse"
    assert definition in SCHEMA["definitions"], f"the protocol has no {definition}"
    validator = validator_for(SCHEMA, Draft4Validator)({**SCHEMA, "$ref": f"#/definitions/{definition}"})
    errors = [f"{'/'.join(map(str, e.path))}: {e.message}" for e in validator.iter_errors(message)]
    assert errors == [], (definition, errors)


class _Bodiless(dap.handler.Handler):
    def handle_response(self, response: Any) -> Any:
        if response.success and response.body is None:
            self.client._pending_requests.pop(response.request_seq)
            return response
        return super().handle_response(response)

    def handle_event(self, event: Any) -> Any:
        if event.body is None:
            return event
        body = {name: value for name, value in event.body.items() if name != "hitBreakpointIds"}
        return super().handle_event(event.model_copy(update={"body": body}))


class Editor:
    """One client. `ask` gives a response's body, or fails with the adapter's sentence; events wait until `event`."""

    def __init__(self, read: Callable[[], bytes], write: Callable[[bytes], object], leave: Callable[[], None]) -> None:
        self.client = dap.client.Client("djinn")
        self.client.handler = _Bodiless(self.client)
        self._read, self._write, self._leave = read, write, leave
        self._came: SimpleQueue[dict[str, Any] | None] = SimpleQueue()
        self.unread = ""
        self.token: str | None = None
        self.said: list[dict[str, Any]] = []
        self._waiting: list[dict[str, Any]] = []
        threading.Thread(target=self._listen, daemon=True).start()
        self.capabilities = self._answer(1)

    # --- conversation ------------------------------------------------------------------------------------------------

    def post(self, command: str, **arguments: Any) -> int:
        if self.token is not None and command in ("launch", "attach"):
            arguments.setdefault("token", self.token)
        number = self.client.send_request(command, arguments)
        self._flush()
        return number

    def ask(self, command: str, **arguments: Any) -> dict[str, Any]:
        return self._answer(self.post(command, **arguments))

    def refused(self, command: str, **arguments: Any) -> str:
        response = self._response(self.post(command, **arguments))
        assert not response["success"], response
        assert response["body"]["error"]["format"] == response["message"]
        return str(response["message"])

    def event(self, name: str) -> dict[str, Any]:
        """The body of the next event of that name; other events keep waiting."""
        return dict(self._next(lambda m: m["type"] == "event" and m["event"] == name).get("body", {}))

    def remark(self) -> str:
        """Return the next error text (`stderr` output) of the adapter."""
        while (said := self.event("output"))["category"] != "stderr":
            pass
        return str(said["output"])

    def send(self, data: bytes) -> None:
        self._write(data)

    def _answer(self, number: int) -> dict[str, Any]:
        self._flush()
        response = self._response(number)
        assert response["success"], response["message"]
        return dict(response.get("body", {}))

    def _response(self, number: int) -> dict[str, Any]:
        return self._next(lambda m: m["type"] == "response" and m["request_seq"] == number)

    def _next(self, fits: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        for message in self._waiting:
            if fits(message):
                self._waiting.remove(message)
                return message
        while True:
            try:
                message = self._came.get(timeout=SECONDS)
            except Empty:
                raise AssertionError(f"the adapter says nothing; last it said {self.said[-3:]}") from None
            assert message is not None, f"the adapter has ended {self.unread}; last it said {self.said[-3:]}"
            conform(message)
            self.said.append(message)
            if fits(message):
                return message
            self._waiting.append(message)

    def _flush(self) -> None:
        data = bytes(self.client.send())
        if data:
            self._write(data)

    def _listen(self) -> None:
        """Read bytes through the public client, which takes them apart and reads them with its own models."""
        parsed = self.client.handler._parse_message

        def parse(message: dict[str, Any]) -> Any:
            self._came.put(message)
            return parsed(message)

        self.client.handler._parse_message = parse
        try:
            while more := self._read():
                for _ in self.client.receive(more):
                    pass
        except Exception as error:  # noqa: BLE001  the client could not read it: the test fails with that
            self.unread = repr(error)
        finally:
            self._came.put(None)

    def ended(self) -> bool:
        """Return whether the adapter closes its pipe now."""
        while (message := self._came.get(timeout=SECONDS)) is not None:
            conform(message)
        return True

    # --- sentences ---------------------------------------------------------------------------------------------------

    def launch(self, *sites: str, **options: Any) -> None:
        """Launch with function breakpoints and let it run."""
        self.ask("launch", **{"model": "demo", "threads": 1, **options})
        self.event("initialized")
        self.break_at(*sites)
        self.ask("configurationDone")

    def break_at(self, *sites: str) -> list[dict[str, Any]]:
        answer = self.ask("setFunctionBreakpoints", breakpoints=[{"name": site} for site in sites])
        return list(answer["breakpoints"])

    def stopped(self, thread: int = 1) -> str:
        """The site of the next stop of a thread; an editor may be shown the stops of other sessions too."""
        said = self._next(lambda m: m.get("event") == "stopped" and m["body"]["threadId"] == thread)
        return str(said["body"]["description"]).removeprefix("Paused at ")

    def stack(self, thread: int = 1) -> list[dict[str, Any]]:
        return list(self.ask("stackTrace", threadId=thread)["stackFrames"])

    def scopes(self, frame: int | None = None) -> dict[str, int]:
        chosen = self.stack()[0]["id"] if frame is None else frame
        return {s["name"]: s["variablesReference"] for s in self.ask("scopes", frameId=chosen)["scopes"]}

    def inside(self, reference: int, **part: Any) -> dict[str, dict[str, Any]]:
        return {v["name"]: v for v in self.ask("variables", variablesReference=reference, **part)["variables"]}

    def leave(self) -> None:
        self._leave()


def on_pipes(*command: str) -> Editor:
    """A `djinn dap` process of one's own, started by this command."""
    ours = command or (sys.executable, "-m", "djinn_jupyter.cli.main", "dap")
    process = subprocess.Popen(ours, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    incoming, outgoing = process.stdout.fileno(), process.stdin

    def write(data: bytes) -> None:
        outgoing.write(data)
        outgoing.flush()

    def leave() -> None:
        outgoing.close()
        assert process.wait(60) == 0
        process.stdout.close()

    return Editor(lambda: os.read(incoming, 65536), write, leave)


def on_port(port: int, token: str) -> Editor:
    connection = socket.create_connection(("127.0.0.1", port))
    made = Editor(lambda: connection.recv(65536), connection.sendall, connection.close)
    made.token = token
    return made
