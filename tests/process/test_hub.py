"""The exchange of a hub's tokens for admissions: a real service with real sockets, in front of a double of the hub that
gives the documented answers of `GET /hub/api/user`. A real JupyterHub is in test_jupyterhub.py."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tornado.httpserver import HTTPServer
from tornado.web import Application, RequestHandler

from djinn_jupyter.api import loading
from djinn_jupyter.errors import DjinnError, EngineUnavailable, KeyRefused, UsageError
from djinn_jupyter.link.transport import Connection
from djinn_jupyter.remote import hub_user as client
from djinn_jupyter.remote.addresses import draw, key_folder, of_engines_here
from djinn_jupyter.remote.connection import open_connection
from djinn_jupyter.remote.hub import Hub, Loans, TokenExchange, listen, person_of
from djinn_jupyter.remote.hub_user import HubAdmission, HubService
from djinn_jupyter.wire.keys import require_person_name
from djinn_jupyter.wire.registry import Entry
from djinn_jupyter.wire.replies import Opened
from djinn_jupyter.wire.requests import ListSessions, Open, Ping
from tests.process.served import Served, entry_for, served

Found = TypeVar("Found")
SCOPE = "access:services!service=djinn"


class HubDouble:
    """The users behind tokens, as the hub's interface tells of them; `status` is that of all its answers."""

    def __init__(self) -> None:
        self.users = {f"token-of-{name}": self.user(name) for name in ("anna", "bert")}
        self.status = 200

    @staticmethod
    def user(name: str, *, kind: str = "user", scopes: tuple[str, ...] = (SCOPE,)) -> dict[str, object]:
        return {"kind": kind, "name": name, "admin": False, "groups": [], "scopes": ["read:users:name!user", *scopes]}

    def answer(self, authorization: str) -> tuple[int, object]:
        user = self.users.get(authorization.removeprefix("token "))
        if self.status != 200 or user is None:
            return (403 if self.status == 200 else self.status), {"status": self.status, "message": "Forbidden"}
        return 200, user


class _UserHandler(RequestHandler):
    def initialize(self, double: HubDouble) -> None:
        self.double = double

    def get(self) -> None:
        status, body = self.double.answer(self.request.headers["Authorization"])
        self.set_status(status)
        self.write(json.dumps(body))


class Site:
    """A hub, Djinn's service and what it offers."""

    def __init__(self, service: TokenExchange, hub: HubDouble, address: str, servers: list[HTTPServer]) -> None:
        self.service, self.hub, self.address, self.servers = service, hub, address, servers
        self.offered: list[Entry] = []

    async def admit(self, token: str, public: bytes | None = None) -> bytes:
        """Exchange a token as a user's server does, beside this loop. Return the public key."""
        public = public or draw()[0]
        await aside(lambda: HubService(address=self.address, token=token).exchange(public))
        return public


@pytest.fixture
async def site(runtime: Path) -> AsyncIterator[Site]:
    double, servers = HubDouble(), []
    hub = listen(Application([("/hub/api/user", _UserHandler, {"double": double})]), "127.0.0.1", 0)
    service = TokenExchange(
        hub=Hub(f"http://127.0.0.1:{port_of(hub)}/hub/api", frozenset({"access:services", SCOPE})),
        loans=Loans(key_folder(), 600.0),
        engines_key=of_engines_here().public,
        host="127.0.0.1",
        running=lambda: site.offered,
    )
    door = listen(service.application("/services/djinn/"), "127.0.0.1", 0)
    servers += [hub, door]
    site = Site(service, double, f"http://127.0.0.1:{port_of(door)}/services/djinn/", servers)
    yield site
    for server in servers:
        server.stop()
        await server.close_all_connections()


def port_of(server: HTTPServer) -> int:
    (socket, *_) = server._sockets.values()
    return socket.getsockname()[1]


async def aside(ask: Callable[[], Found]) -> Found:
    return await asyncio.get_running_loop().run_in_executor(None, ask)


async def refusal(asked: Awaitable[object]) -> str:
    with pytest.raises(DjinnError) as refused:
        await asked
    return f"{refused.value.code}: {refused.value}"


async def test_a_token_is_exchanged_for_an_admission_that_ends(site: Site) -> None:
    public = await site.admit("token-of-anna")
    (permit,) = key_folder().permits().values()
    assert (permit.person, permit.lent) == ("anna", True)
    assert 0 < permit.until - key_folder().now() <= 600
    assert key_folder().allowed() == {public: "anna"}


async def test_what_the_hub_refuses_is_refused_in_one_sentence(site: Site) -> None:
    site.hub.users |= {
        "a-service": HubDouble.user("culler", kind="service"),
        "narrow": HubDouble.user("anna", scopes=()),
        "long": HubDouble.user("é" * 60),
    }
    for token, says in (
        ("token-of-eve", "KeyRefused: The hub does not know this server's token any more"),
        ("a-service", "KeyRefused: The token is that of a service of the hub"),
        ("narrow", f"KeyRefused: The hub lets anna not use Djinn by this token: .* need the scope {SCOPE}"),
        ("long", "UsageError: The name of the hub's user"),
        ("é" * 3, "KeyRefused: This is no token"),
    ):
        assert re.match(says, await refusal(site.admit(token))), token
    site.hub.status = 500
    assert "EngineUnavailable: The hub at" in await refusal(site.admit("token-of-anna"))
    site.servers[0].stop()
    await site.servers[0].close_all_connections()
    assert "does not answer" in await refusal(site.admit("token-of-anna"))
    assert key_folder().permits() == {}


async def test_a_key_of_another_user_and_a_name_that_is_taken_are_refused(site: Site) -> None:
    public = await site.admit("token-of-anna")
    assert "admitted already, as anna" in await refusal(site.admit("token-of-bert", public))
    key_folder().revoke("anna")
    key_folder().allow(of_hand := draw()[0], "anna")
    assert "anna is admitted here by a key of their own" in await refusal(site.admit("token-of-anna"))
    assert key_folder().allowed() == {of_hand: "anna"}


async def test_what_the_hub_revokes_is_taken_back_at_the_next_look_and_nothing_else(site: Site) -> None:
    of_anna, of_bert = await site.admit("token-of-anna"), await site.admit("token-of-bert")
    await site.service.look()
    assert key_folder().allowed() == {of_anna: "anna", of_bert: "bert"}
    del site.hub.users["token-of-anna"]
    site.hub.status = 503  # the hub starts anew
    await site.service.look()
    assert key_folder().allowed() == {of_anna: "anna", of_bert: "bert"}
    site.hub.status = 200
    await site.service.look()
    assert key_folder().allowed() == {of_bert: "bert"}
    site.hub.users["token-of-bert"] = HubDouble.user("bert", scopes=())
    await site.service.look()
    assert key_folder().allowed() == {}


async def test_a_key_of_two_servers_stays_until_both_tokens_are_gone(site: Site) -> None:
    site.hub.users["another"] = HubDouble.user("anna")
    public = await site.admit("token-of-anna")
    await site.admit("another", public)
    del site.hub.users["another"]
    await site.service.look()
    assert key_folder().allowed() == {public: "anna"}
    other = await site.admit("token-of-anna")
    assert key_folder().allowed() == {other: "anna"}


async def test_users_of_a_hub_work_at_one_engine_and_see_their_own_sessions(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DJINN_HUB", site.address)
    opened = {}
    with served(tcp=True) as house:
        site.offered = [entry_for(house.service.commands, house.service.listens)]
        for name in ("anna", "bert"):
            connection = opened[name] = await connected(site, house, name, monkeypatch)
            made = await connection.ask(Open(session="main"))
            assert isinstance(made, Opened)
            assert (made.session.name, made.session.owner) == ("main", name)
        del site.hub.users["token-of-anna"]
        await site.service.look()
        with pytest.raises(KeyRefused, match=r"does not admit this key any more: .* in a JupyterHub, load again"):
            await opened["anna"].ask(Ping())
        await opened["bert"].ask(ListSessions())
        site.hub.users["token-of-anna"] = HubDouble.user("anna")
        again = await connected(site, house, "anna", monkeypatch)
        assert isinstance(await again.ask(Open(session="main", join=True)), Opened)
        for connection in (*opened.values(), again):
            await connection.close()


async def test_who_is_admitted_again_loads_again_in_the_same_kernel(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DJINN_HUB", site.address)
    monkeypatch.setenv("JUPYTERHUB_API_TOKEN", "token-of-anna")
    with served(tcp=True) as house:
        site.offered = [entry_for(house.service.commands, house.service.listens)]
        engine = await aside(lambda: loading.connect("hub"))
        await aside(lambda: engine.session("main"))
        key_folder().revoke("anna")
        with pytest.raises(KeyRefused):
            await aside(engine.sessions)
        again = await aside(lambda: loading.connect("hub"))
        (session,) = await aside(again.sessions)
        assert (session.name, session.owner) == ("main", "anna")
        loading._renewal.end()
        await aside(loading._channels.close)


async def connected(site: Site, house: Served, name: str, monkeypatch: pytest.MonkeyPatch) -> Connection:
    """Return a connection as the user's server makes it, whose home folder has its key and whom it trusts."""
    here = key_folder()._path
    monkeypatch.setattr(client, "host_name", lambda: name)  # each user has a file of their own in this one folder
    monkeypatch.setenv("JUPYTERHUB_API_TOKEN", f"token-of-{name}")
    admission = await aside(HubAdmission.ask)
    assert admission.loan.person == name
    assert admission.secret_file == here / "hub" / name
    return await open_connection(await aside(lambda: admission.entry("fake")), holder=f"kernel-{name}", user="root")


async def test_each_refusal_on_the_servers_side_is_one_sentence(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DJINN_HUB", raising=False)
    monkeypatch.delenv("JUPYTERHUB_API_TOKEN", raising=False)
    with pytest.raises(UsageError, match="no server of a JupyterHub with Djinn's service, JUPYTERHUB_API_TOKEN is not"):
        HubAdmission.ask()
    monkeypatch.setenv("JUPYTERHUB_API_TOKEN", "token-of-anna")
    with pytest.raises(UsageError, match="DJINN_HUB is not set"):
        HubAdmission.ask()
    monkeypatch.setenv("DJINN_HUB", site.address)
    admission = await aside(HubAdmission.ask)
    with pytest.raises(EngineUnavailable, match="The hub has no engine now"):
        admission.entry(None)
    site.offered = [entry_for("ipc:///x", f"tcp://0.0.0.0:{port}") for port in (5556, 5557)]
    admission = await aside(HubAdmission.ask)
    with pytest.raises(UsageError, match=r"The hub has several engines: fake, fake\. Name one"):
        admission.entry(None)
    with pytest.raises(UsageError, match="The hub has no engine of gpt2; it has fake, fake"):
        admission.entry("gpt2")
    assert admission.entry("fake").commands == "tcp://127.0.0.1:5556"
    monkeypatch.setenv("DJINN_HUB", site.address.replace("/services/djinn", "/hub"))
    with pytest.raises(EngineUnavailable, match=r"is no service of Djinn \(status 404"):
        await aside(HubAdmission.ask)
    site.servers[1].stop()
    await site.servers[1].close_all_connections()
    monkeypatch.setenv("DJINN_HUB", site.address)
    with pytest.raises(EngineUnavailable, match=r"Djinn's service of the hub at http://.* does not answer \("):
        await aside(HubAdmission.ask)


async def test_an_admission_is_renewed_until_the_hub_refuses(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DJINN_HUB", site.address)
    monkeypatch.setenv("JUPYTERHUB_API_TOKEN", "token-of-anna")
    admission, waits = await aside(HubAdmission.ask), []
    held: list[bool] = []

    def wait(seconds: float) -> bool:
        """Note whether the last renewal has admitted the key, and revoke it before the next one."""
        waits.append(seconds)
        held.append(bool(key_folder().allowed()))
        if held[-1]:
            key_folder().revoke("anna")
        if len(waits) == 2:
            site.hub.status = 503
        elif len(waits) == 3:
            site.hub.status = 200
        elif len(waits) == 4:
            site.hub.users.clear()
        return len(waits) > 9

    await aside(lambda: client._renew(admission, wait))
    assert waits == [300.0, 300.0, 5.0, 300.0]
    assert held == [True, True, False, True]
    assert key_folder().allowed() == {}


async def test_a_renewal_goes_on_after_an_answer_that_is_none(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DJINN_HUB", site.address)
    monkeypatch.setenv("JUPYTERHUB_API_TOKEN", "token-of-anna")
    admission, waits = await aside(HubAdmission.ask), list[float]()
    answers, posted = [(200, b"<html>Sign in</html>")], HubService._posted
    monkeypatch.setattr(HubService, "_posted", lambda self, body: answers.pop() if answers else posted(self, body))

    def wait(seconds: float) -> bool:
        waits.append(seconds)
        return len(waits) == 3

    await aside(lambda: client._renew(admission, wait))
    assert waits == [300.0, 5.0, 300.0]


def test_a_token_is_in_no_repr() -> None:
    assert "secret" not in repr(HubService(address="http://hub", token="secret"))


@given(st.text(min_size=1, max_size=12), st.text(min_size=1, max_size=12))
def test_each_user_of_a_hub_is_another_person(one: str, other: str) -> None:
    try:
        persons = [person_of(one), person_of(other)]
    except (UsageError, UnicodeEncodeError):
        return
    assert (persons[0] == persons[1]) == (one == other)
    for person in persons:
        require_person_name(person)


@pytest.mark.parametrize(("user", "person"), [("anna", "anna"), ("a.b-c", "a.b-c"), ("anna@lab.org", "anna_40lab.org"),
    ("_x", "u__5Fx"), ("u_x", "u_5Fx")])  # fmt: skip
def test_the_person_of_a_user_is_spelled(user: str, person: str) -> None:
    assert person_of(user) == person
