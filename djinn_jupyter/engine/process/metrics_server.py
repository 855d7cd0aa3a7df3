"""The server of the page of metrics: HTTP for Prometheus alone. Answers no page of another origin and no strange name
for this machine, which a page could have made its own (DNS rebinding). Has few visitors at once: the oldest makes room
for the next. Knows no metrics."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from ipaddress import ip_address
from typing import Any, Final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.exposition import ThreadingWSGIServer

VISITORS: Final = 16  # at once
VISIT_SECONDS: Final = 10.0  # for which a visitor may be silent

Environment = dict[str, Any]
Application = Callable[[Environment, Callable[..., object]], Iterable[bytes]]


class PageServer(ThreadingWSGIServer):
    """A thread for each visitor, and at most VISITORS of them: the oldest makes room for the next."""

    request_queue_size = 4 * VISITORS

    def __init__(self, address: tuple[str, int], handler: type[WSGIRequestHandler]) -> None:
        self.address_family = socket.getaddrinfo(*address, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0][0]
        self._places = threading.BoundedSemaphore(VISITORS)
        self._visits: dict[socket.socket, None] = {}  # the oldest first
        super().__init__(address, handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        for oldest in list(self._visits)[: 1 - VISITORS]:
            with suppress(OSError):  # it has gone
                oldest.shutdown(socket.SHUT_RDWR)
        self._places.acquire()
        self._visits[request] = None
        try:
            super().process_request(request, client_address)
        except RuntimeError:  # no thread can be started
            self._leave(request)
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._leave(request)

    def _leave(self, visit: socket.socket) -> None:
        del self._visits[visit]
        self._places.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log nothing: a visitor that goes, is silent or speaks no HTTP is no error of the engine."""


class PageVisit(WSGIRequestHandler):
    timeout = VISIT_SECONDS

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing."""


def start_page(port: int, host: str, registry: CollectorRegistry) -> tuple[WSGIServer, threading.Thread]:
    """Serve the registry's page at an address of this machine, on a thread. OSError where it cannot be bound."""
    page = guarded(make_wsgi_app(registry), host)
    server = make_server(host, port, page, PageServer, PageVisit)
    thread = threading.Thread(target=server.serve_forever, name="djinn-metrics", daemon=True)
    thread.start()
    return server, thread


def guarded(page: Application, host: str) -> Application:
    """Return the page, which refuses what comes from another origin or by a name that is not this machine's; `host` is
    the one that was given for it."""

    def answer(environment: Environment, start: Callable[..., object]) -> Iterable[bytes]:
        refusal = _refusal(environment, host)
        if refusal is None:
            return page(environment, start)
        start("403 Forbidden", [("Content-Type", "text/plain; charset=utf-8")])
        return [f"{refusal}\n".encode()]

    return answer


def _refusal(environment: Environment, host: str) -> str | None:
    """Return the sentence for which a request is refused, None where it is not."""
    if "HTTP_ORIGIN" in environment:
        return "This page is for Prometheus, not for the scripts of a web page."
    asked = environment.get("HTTP_HOST")
    if asked is None or _is_here(asked, host):
        return None
    return "This page is asked by the machine's address or name, or by the host that was given with --metrics."


def _is_here(asked: str, host: str) -> bool:
    """Return True for an address, which no page can make its own, and for a name of this machine."""
    name = asked.rpartition("]")[0].removeprefix("[") or asked.partition(":")[0]
    try:
        ip_address(name)
    except ValueError:
        own = socket.gethostname().lower()
        return name.lower() in ("localhost", host.lower(), own, own.partition(".")[0])
    return True
