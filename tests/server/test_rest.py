from __future__ import annotations

import base64
import json
import struct
from pathlib import Path
from typing import Any

from djinn_jupyter.engine.process.registration import Registration
from djinn_jupyter.wire.requests import Close
from tests.process.fake_engine import FakeSession
from tests.process.served import Served, entry_for
from tests.server.jupyter import Jupyter, jupyter_server

BUNDLED = Path(__file__).parents[2] / "labextension/src/wire"


async def engine_id(jupyter: Jupyter) -> str:
    (found,) = await jupyter.engines()
    return str(found["id"])


async def ask(jupyter: Jupyter, request: str, **fields: object) -> tuple[int, Any]:
    return await jupyter.ask(await engine_id(jupyter), request, **fields)


async def test_engines_are_listed_with_what_they_serve_and_without_secrets(engine: Served, jupyter: Jupyter) -> None:
    (found,) = await jupyter.engines()
    await ask(jupyter, "Ping")
    (found,) = await jupyter.engines()
    assert (found["model"], found["pid"], found["state"], found["reason"]) == ("fake", engine.entry.pid, "ready", None)
    assert found["description"]["layers"] == 8
    listed = (await jupyter.fetch("djinn/api/engines")).body.decode()
    assert "ipc:" not in listed
    assert "secret" not in listed


async def test_the_answer_names_the_messages_that_the_sidebar_was_built_with(jupyter: Jupyter) -> None:
    told = json.loads((await jupyter.fetch("djinn/api/engines")).body)["protocol"]
    assert f"export const PROTOCOL = '{told}';" in (BUNDLED / "protocol.ts").read_text()


async def test_engines_that_cannot_be_spoken_to_are_listed_with_the_reason(root: Path) -> None:
    here = entry_for("ipc:///nowhere/commands")
    other_version = _registered(here, version="0.0.1", pid=here.pid)
    other_host = _registered(here, host="elsewhere", pid=1)
    async with jupyter_server(root) as jupyter:
        found = {engine["version"]: engine for engine in await jupyter.engines()}
        assert len(found) == 2
        assert "is of another version of Djinn (0.0.1" in found.pop("0.0.1")["reason"]
        (elsewhere,) = found.values()
        assert elsewhere["state"] == "refused"
        assert "runs on elsewhere" in elsewhere["reason"]
        status, failed = await jupyter.ask(elsewhere["id"], "Ping")
        assert (status, failed["code"], failed["message"]) == (503, "EngineUnavailable", elsewhere["reason"])
    assert other_host.path.exists()
    other_version.withdraw()


def _registered(entry: Any, **changed: Any) -> Registration:
    fields = {name: getattr(entry, name) for name in entry.__struct_fields__}
    return Registration(type(entry)(**fields | changed))


async def test_a_request_is_answered_with_its_reply(engine: Served, jupyter: Jupyter) -> None:
    """A session that the server opens is held by nobody."""
    status, opened = await ask(jupyter, "Open", session="work/paris.ipynb")
    assert (status, opened["reply"], opened["created"]) == (200, "Opened", True)
    status, listed = await ask(jupyter, "ListSessions")
    assert [(one["name"], one["holder"]) for one in listed["sessions"]] == [("work/paris.ipynb", None)]


async def test_a_move_is_accepted_and_its_outcome_comes_over_the_websocket(engine: Served, jupyter: Jupyter) -> None:
    """That of a run without end when it is paused."""
    window = await jupyter.listen()
    await ask(jupyter, "Open", session="paris")
    status, accepted = await ask(jupyter, "Run", session="paris", tokens=[1], max_new_tokens=3)
    assert (status, accepted["reply"]) == (202, "Accepted")
    outcome = await window.until(lambda message: message["live"] == "outcome")
    assert (outcome["move"], outcome["request"], outcome["session"]) == (accepted["move"], "Run", "paris")
    assert outcome["reply"]["reply"] == "Finished"
    assert outcome["reply"]["tokens"] == [1, 2, 3]
    status, accepted = await ask(jupyter, "Run", session="paris", tokens=[1], max_new_tokens=10_000_000)
    assert status == 202
    paused = {"reply": "Pausing", "was_running": True, "not_kept": None}
    assert await ask(jupyter, "Pause", session="paris") == (200, paused)
    outcome = await window.until(lambda message: message["live"] == "outcome")
    assert (outcome["move"], outcome["reply"]["reason"]) == (accepted["move"], "interrupt")
    await window.close()


async def test_a_move_that_is_refused_has_no_outcome(engine: Served, jupyter: Jupyter) -> None:
    window = await jupyter.listen()
    await ask(jupyter, "Open", session="paris")
    status, failed = await ask(jupyter, "Resume", session="paris")
    assert (status, failed["code"]) == (409, "IllegalMove")
    await window.say(say="resync")
    snapshot = await window.until(lambda message: message["live"] == "snapshot" and message["engines"])
    assert snapshot["outcomes"] == []
    assert not [message for message in window.messages if message["live"] == "outcome"]
    await window.close()


async def test_arrays_cross_in_both_directions(engine: Served, jupyter: Jupyter) -> None:
    await ask(jupyter, "Open", session="paris")
    row = {"dtype": "float32", "shape": [2], "base64": base64.b64encode(struct.pack("<2f", 1.0, 2.0)).decode()}
    status, edited = await ask(jupyter, "ApplyEdit", session="paris", edit={"edit": "set", "value": row})
    assert (status, edited["edit"]) == (200, "Set")
    _, inspected = await ask(jupyter, "Inspect", session="paris")
    value = inspected["snapshot"]["value"]
    assert (value["dtype"], value["shape"]) == ("float32", [1, 2])
    assert struct.unpack("<2f", base64.b64decode(value["base64"])) == (1.0, 1.0)


MALFORMED = {
    "": "Not a request of this protocol: Input data was truncated.",
    "{": "Not a request of this protocol: Input data was truncated.",
    "[]": "Not a request of this protocol: Expected `object`, got `array`.",
    "{}": "Not a request of this protocol: Object missing required field `request`.",
    '{"request": "Fly"}': "Not a request of this protocol: Invalid value 'Fly' - at `$.request`.",
    '{"request": "Describe"}': "Not a request of this protocol: Object missing required field `session`.",
    '{"request": "Describe", "session": ""}': "Expected `str` of length >= 1 - at `$.session`.",
    '{"request": "Ping", "loud": true}': "Object contains unknown field `loud`.",
    '{"request": "Step", "session": "a", "count": -1}': "Expected `int` >= 1 - at `$.count`.",
    '{"request": "ApplyEdit", "session": "a", "edit": {"edit": "set", "value": {"dtype": "float32", "shape": [1],'
    ' "base64": "x"}}}': "an array's base64 cannot be read",
    '{"request": "ApplyEdit", "session": "a", "edit": {"edit": "set", "value": {"dtype": "float32", "shape": [3],'
    ' "base64": ""}}}': "An array of shape (3,) and dtype float32 needs 12 bytes, the message carries 0.",
    "\udcff": "Not a request of this protocol: JSON is malformed",
}


async def test_a_malformed_body_is_answered_in_one_clear_sentence(engine: Served, jupyter: Jupyter) -> None:
    address = f"djinn/api/engines/{await engine_id(jupyter)}/ask"
    for body, sentence in MALFORMED.items():
        answer = await jupyter.fetch(address, body.encode(errors="surrogateescape") or b" ")
        failed = json.loads(answer.body)
        assert (answer.code, failed["reply"], failed["code"]) == (400, "Failed", "MalformedMessage"), body
        assert sentence in failed["message"]
        assert failed["message"].count("\n") == 0


async def test_what_is_not_for_a_browser_is_refused_by_name(engine: Served, jupyter: Jupyter) -> None:
    fields: dict[str, dict[str, str]] = {
        "Hello": {"version": "1", "holder": "me", "user": "me"},
        "Goodbye": {},
        "Detach": {"session": "paris"},
        "Note": {"session": "paris", "activity": "busy"},
    }
    for request, given in fields.items():
        status, failed = await ask(jupyter, request, **given)
        assert (status, failed["code"]) == (405, "UsageError")
        assert failed["message"] == f"{request} is not for a browser to ask."


async def test_what_fails_has_a_fitting_status(engine: Served, jupyter: Jupyter) -> None:
    engine.engine.sessions["held"] = FakeSession(name="held", owner="ada", holder="kernel-1")
    expected = {
        ("Describe", "nowhere"): (404, "UnknownSession"),
        ("Open", "held"): (409, "SessionHeld"),
        ("Step", "held"): (409, "IllegalMove"),
    }
    for (request, session), outcome in expected.items():
        status, failed = await ask(jupyter, request, session=session)
        assert (status, failed["code"]) == outcome
    status, failed = await ask(jupyter, "Tokenize", text="a fault of the engine")
    assert (status, failed["code"]) == (500, "DjinnError")
    status, failed = await jupyter.ask("fake-0-1", "Ping")
    assert (status, failed["code"]) == (404, "EngineUnavailable")


async def test_a_request_that_takes_too_long_says_so(engine: Served, root: Path) -> None:
    engine.engine.accept = lambda request, holder, reply, known_as=None: None
    async with jupyter_server(root, ask_seconds=0.1) as jupyter:
        for request in ("Describe", "Resume"):
            status, failed = await ask(jupyter, request, session="paris")
            assert (status, failed["code"]) == (504, "EngineUnavailable")
            said = f"The engine has not answered {request} within 0.1 s. It may still do it."
            assert failed["message"] == said


async def test_all_of_it_works_below_a_base_url(engine: Served, root: Path) -> None:
    async with jupyter_server(root, base_url="/user/ada/") as jupyter:
        assert jupyter.url.endswith("/user/ada/")
        assert (await ask(jupyter, "Ping"))[0] == 200
        window = await jupyter.listen()
        await window.until_seen(lambda engines: engines)
        await window.close()


async def test_two_servers_see_one_engine_and_each_others_doings(engine: Served, root: Path) -> None:
    async with jupyter_server(root) as one, jupyter_server(root) as other:
        window = await other.listen()
        await ask(one, "Open", session="paris")
        await window.until_seen(lambda engines: any("paris" in e["sessions"] for e in engines.values()))
        await ask(other, "Close", session="paris")
        assert (await ask(one, "Describe", session="paris"))[0] == 404
        await window.close()


async def test_an_engine_is_told_for_which_notebook_a_window_asks(engine: Served, jupyter: Jupyter, root: Path) -> None:
    await ask(jupyter, "Open", session="paris")
    taken: list[Any] = []
    accept = engine.engine.accept

    def seen(request: Any, holder: Any, reply: Any, known_as: Any = None) -> None:
        taken.append(request)
        accept(request, holder, reply, known_as)

    engine.engine.accept = seen
    address = f"djinn/api/engines/{await engine_id(jupyter)}/ask?notebook=work/rome.ipynb"
    await jupyter.fetch(address, {"request": "Close", "session": "paris"})
    (closed,) = [request for request in taken if isinstance(request, Close)]
    assert (closed.for_holder, closed.for_notebook, closed.force) == (None, str(root / "work/rome.ipynb"), False)


async def test_a_page_may_have_refusals_as_answers(engine: Served, jupyter: Jupyter) -> None:
    """A browser writes every other status to its console."""
    address = f"djinn/api/engines/{await engine_id(jupyter)}/ask?refused=200"
    for body in ({"request": "Describe", "session": "nobody"}, {"request": "Fly"}):
        answer = await jupyter.fetch(address, body)
        assert (answer.code, json.loads(answer.body)["reply"]) == (200, "Failed")
