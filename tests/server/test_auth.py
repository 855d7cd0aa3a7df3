"""No address of the extension answers an unauthenticated client. All that the server serves is walked."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from jupyter_server.auth import Authorizer
from tornado.httpclient import HTTPClientError
from tornado.routing import RuleRouter
from tornado.web import RequestHandler
from tornado.websocket import WebSocketHandler

from djinn_jupyter.server.endpoints import AskEndpoint, EnginesEndpoint, LiveEndpoint
from tests.process.served import Served
from tests.server.jupyter import Jupyter, jupyter_server

METHODS = ("get", "head", "post", "put", "patch", "delete")


def routes(router: RuleRouter) -> Iterator[tuple[str, type[RequestHandler]]]:
    """Every address below `router` that an endpoint of ours answers, as a path that matches it."""
    for rule in router.rules:
        if isinstance(rule.target, RuleRouter):
            yield from routes(rule.target)
        elif isinstance(rule.target, type) and rule.target.__module__.startswith("djinn_jupyter"):
            pattern = rule.matcher.regex.pattern
            yield re.sub(r"\(.*\)", "fake-0-1", pattern).strip("^$").lstrip("/"), rule.target


def served_by(jupyter: Jupyter) -> list[tuple[str, type[RequestHandler]]]:
    return list(routes(jupyter.app.web_app.default_router))


def answered(endpoint: type[RequestHandler]) -> list[str]:
    return [m.upper() for m in METHODS if getattr(endpoint, m) is not getattr(RequestHandler, m)]


async def test_every_endpoint_is_walked(jupyter: Jupyter) -> None:
    found = {endpoint: (path, answered(endpoint)) for path, endpoint in served_by(jupyter)}
    assert found == {
        EnginesEndpoint: ("djinn/api/engines", ["GET"]),
        AskEndpoint: ("djinn/api/engines/fake-0-1/ask", ["POST"]),
        LiveEndpoint: ("djinn/api/live", ["GET"]),
    }


@pytest.mark.parametrize("token", [None, "wrong"])
async def test_nothing_is_answered_without_the_token(engine: Served, jupyter: Jupyter, token: str | None) -> None:
    for path, endpoint in served_by(jupyter):
        for method in answered(endpoint):
            if issubclass(endpoint, WebSocketHandler):
                with pytest.raises(HTTPClientError) as refused:
                    await jupyter.listen(token=token)
                assert refused.value.code == 403
            else:
                body = {"request": "Ping"} if method == "POST" else None
                answer = await jupyter.fetch(path, body, token=token, method=method)
                assert (path, answer.code) == (path, 403)
                assert b"fake" not in answer.body.replace(path.encode(), b"")
    assert engine.engine.sessions == {}


async def test_a_page_of_another_site_cannot_write_with_the_browsers_cookie(engine: Served, jupyter: Jupyter) -> None:
    """A browser sends its cookie along from anywhere; that alone lets no page write, or listen from another origin."""
    pages = [await jupyter.fetch(path, token=None) for path in ("login", "login?token=" + jupyter.token)]
    cookie = "; ".join(set_.partition(";")[0] for page in pages for set_ in page.headers.get_list("Set-Cookie"))
    assert (await jupyter.fetch("djinn/api/engines", token=None, headers={"Cookie": cookie})).code == 200
    (found,) = await jupyter.engines()
    path, ping = f"djinn/api/engines/{found['id']}/ask", {"request": "Ping"}
    refused = await jupyter.fetch(path, ping, token=None, headers={"Cookie": cookie})
    assert refused.code == 403
    assert b"_xsrf" in refused.body
    xsrf = re.search(r"_xsrf=([^;]+)", cookie)
    assert xsrf
    allowed = await jupyter.fetch(path, ping, token=None, headers={"Cookie": cookie, "X-XSRFToken": xsrf[1]})
    assert allowed.code == 200
    with pytest.raises(HTTPClientError) as cross_origin:
        await jupyter.listen(token=None, headers={"Cookie": cookie, "Origin": "http://elsewhere.example"})
    assert cross_origin.value.code == 403
    window = await jupyter.listen(token=None, headers={"Cookie": cookie, "Origin": jupyter.url.rstrip("/")})
    assert (await window.hear())["live"] == "snapshot"
    await window.close()


REBOUND = ("rebound.example", "rebound.example:%d", "127.0.0.1.rebound.example", "localhost.example:%d", "10.0.0.7:%d")


async def test_a_name_that_was_rebound_to_this_machine_is_answered_nothing(engine: Served, jupyter: Jupyter) -> None:
    """A page whose own name leads here now is of one origin with the server, for a browser: it has no cookie, and with
    the token itself it is refused too."""
    for host, token in itertools.product(REBOUND, (None, "")):
        named = {"Host": host.replace("%d", str(jupyter.app.port)), "Origin": f"http://{host}"}
        for path, endpoint in served_by(jupyter):
            if issubclass(endpoint, WebSocketHandler):
                with pytest.raises(HTTPClientError) as refused:
                    await jupyter.listen(token=token, headers=named)
                assert refused.value.code == 403
            for method in () if issubclass(endpoint, WebSocketHandler) else answered(endpoint):
                body = {"request": "Ping"} if method == "POST" else None
                answer = await jupyter.fetch(path, body, token=token, method=method, headers=dict(named))
                assert (path, answer.code) == (path, 403)
    for own in (f"127.0.0.1:{jupyter.app.port}", f"localhost:{jupyter.app.port}", "[::1]:1"):
        assert (await jupyter.fetch("djinn/api/engines", headers={"Host": own})).code == 200


async def test_where_all_names_are_served_a_rebound_one_still_needs_the_token(engine: Served, root: Path) -> None:
    named = {"Host": "rebound.example", "Origin": "http://rebound.example"}
    async with jupyter_server(root, allow_remote_access=True) as jupyter:
        assert (await jupyter.fetch("djinn/api/engines", token=None, headers=dict(named))).code == 403
        assert (await jupyter.fetch("djinn/api/engines/x/ask", {}, token=None, headers=dict(named))).code == 403
        with pytest.raises(HTTPClientError) as refused:
            await jupyter.listen(token=None, headers=named)
        assert refused.value.code == 403


class MayNothing(Authorizer):
    def is_authorized(self, handler: object, user: object, action: str, resource: str) -> bool:
        return resource != "djinn"


async def test_who_is_not_authorized_is_refused(engine: Served, root: Path) -> None:
    async with jupyter_server(root, authorizer_class=MayNothing) as jupyter:
        assert (await jupyter.fetch("api/status")).code == 200
        assert (await jupyter.fetch("djinn/api/engines")).code == 403
        assert (await jupyter.fetch("djinn/api/engines/fake-0-1/ask", {"request": "Ping"})).code == 403
        with pytest.raises(HTTPClientError) as refused:
            await jupyter.listen()
        assert refused.value.code == 403
