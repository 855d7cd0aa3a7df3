"""The page of metrics: HTTP for Prometheus alone. It refuses pages of another origin and foreign names for this
machine, which a page could have taken over (DNS rebinding). Of many visitors the oldest makes room."""

from __future__ import annotations

import logging
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.exposition import ThreadingWSGIServer
from prometheus_client.registry import Collector

from djinn_jupyter._version import __version__
from djinn_jupyter.engine.process.clients import PublishedState
from djinn_jupyter.engine.process.service import ServiceStatistics
from djinn_jupyter.errors import UsageError
from djinn_jupyter.remote.engine.people import memory_samples, session_samples, time_samples
from djinn_jupyter.settings import split_address
from djinn_jupyter.wire.nouns import EngineStatistics, ModelDescription, PrefetchStatistics, WeightsStatistics

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
        """Log nothing: a visitor that leaves, is silent or speaks no HTTP is not an error of the engine."""


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
    """Return the page, which refuses other origins and foreign names; `host` is the one given for it."""

    def answer(environment: Environment, start: Callable[..., object]) -> Iterable[bytes]:
        refusal = _refusal(environment, host)
        if refusal is None:
            return page(environment, start)
        start("403 Forbidden", [("Content-Type", "text/plain; charset=utf-8")])
        return [f"{refusal}\n".encode()]

    return answer


def _refusal(environment: Environment, host: str) -> str | None:
    """Return the sentence of a refusal, None without one."""
    if "HTTP_ORIGIN" in environment:
        return "This page is for Prometheus, not for the scripts of a web page."
    asked = environment.get("HTTP_HOST")
    if asked is None or _is_here(asked, host):
        return None
    return "This page is asked by the machine's address or name, or by the host that was given with --metrics."


def _is_here(asked: str, host: str) -> bool:
    """Return True for an IP address, which no page can take over, and for a name of this machine."""
    name = asked.rpartition("]")[0].removeprefix("[") or asked.partition(":")[0]
    try:
        ip_address(name)
    except ValueError:
        own = socket.gethostname().lower()
        return name.lower() in ("localhost", host.lower(), own, own.partition(".")[0])
    return True


# The engine's statistics as a page for Prometheus, at an address that its user asked for. Counts and bytes, with the
# names of persons with keys: no name, text, token or path of their work. Each visit reads what the engine has
# published last, on a thread of the page's own, so it never waits for a pass.

log = logging.getLogger(__name__)

Samples = Iterable[tuple[tuple[str, ...], float | None]]

COUNTS: Final = {
    "passes": "Forward passes, whole or in part",
    "layers_run": "Layers computed",
    "layers_replayed": "Layers computed by CUDA graphs",
    "tokens_sampled": "Tokens sampled",
    "requests_answered": "Requests that the engine has answered",
    "preemptions": "Passes that gave way to another session",
    "faults": "Errors that no request met",
    "recovered_exact": "Sessions of earlier engines that came back with their keys, values and states",
    "recovered_recomputed": "Sessions of earlier engines that came back to be computed again",
}
OF_THE_SERVICE: Final = {
    "refused": "Messages that were refused before the engine saw them",
    "dropped": "Messages that could not be answered",
    "unroutable": "Replies whose client had gone",
    "events": "Events of the engine",
    "events_dropped": "Events that a client did not read",
}


class MetricsPage:
    """The page, served from its creation until `close`. `address` is `host:port` with the bound port."""

    def __init__(self, address: str, collector: Collector) -> None:
        host, port = split_address(address)
        registry = CollectorRegistry()
        registry.register(collector)
        try:
            self._server, self._thread = start_page(port, host, registry)
        except OSError as error:
            raise UsageError(
                f"The page of metrics cannot be served at {address} ({error.strerror or error}): give another address "
                "with --metrics, or leave it out."
            ) from None
        self.address = f"{address.rpartition(':')[0]}:{self._server.server_port}"
        log.info("Metrics for Prometheus: http://%s/metrics", self.address)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class EngineCollector(Collector):
    """Translates the published state of an engine and its service; both may be read from any thread."""

    def __init__(
        self,
        model: ModelDescription,
        reading: Callable[[], PublishedState],
        service: Callable[[], ServiceStatistics],
        worked: Callable[[], Mapping[str | None, float]],
    ) -> None:
        self._model, self._reading, self._service, self._worked = model, reading, service, worked

    def collect(self) -> Iterator[Metric]:
        reading, service = self._reading(), self._service()
        told = reading.statistics
        yield self._info()
        yield _gauge("uptime_seconds", "Seconds since the engine began", told.uptime_seconds)
        standing = Counter((one.state, one.residency) for one in reading.sessions)
        yield _gauges("sessions", "Sessions", ("state", "residency"), standing.items())
        for name, words in COUNTS.items():
            yield _counter(name, words, getattr(told, name))
        for name, words in OF_THE_SERVICE.items():
            yield _counter(f"messages_{name}", words, getattr(service, name))
        yield _gauge("clients", "Clients that keep the engine alive", service.clients)
        yield _gauge("requests_pending", "Requests that wait for their answer", service.pending)
        words = "Sessions of each person"
        yield _gauges("person_sessions", words, ("person", "state"), session_samples(reading.sessions))
        words = "Memory of the sessions and the added modules and adapters of each person"
        memory = memory_samples(told.people, reading.sessions)
        yield _gauges("person_bytes", words, ("person", "tier"), memory)
        words = "Seconds that the engine has worked for each person"
        yield _counters("person_running_seconds", words, ("person",), time_samples(self._worked()))
        yield from _memory(told)
        yield from _tiers(told)
        if told.weights is not None:
            yield from _weights(told.weights)
        if told.prefetches is not None:
            yield _prefetches(told.prefetches)

    def _info(self) -> Metric:
        model = self._model
        name = Path(model.name).name if Path(model.name).is_absolute() else model.name  # a folder's path names people
        labels = {"model": name, "dtype": model.dtype, "device": model.device, "version": __version__}
        return InfoMetricFamily("djinn_engine", "The engine's model", value=labels)


def _memory(told: EngineStatistics) -> Iterator[Metric]:
    device = {
        "in_use": told.device_bytes_in_use,
        "total": told.device_bytes_total,
        "other_processes": told.other_bytes,
        "weights": told.weight_bytes,
    }
    yield _gauges("device_bytes", "Memory of the device", ("of",), _labelled(device))
    yield _gauge("process_bytes", "Main memory of the engine's process", told.process_bytes)
    if told.budget is not None:
        held = {holding.kind: float(holding.bytes_held) for holding in told.budget.holdings}
        yield _gauges("session_bytes", "Memory that sessions have on the device", ("kind",), _labelled(held))
        yield _gauge("session_bytes_limit", "The most that sessions may have on the device", told.budget.bytes_limit)
    pages = {
        "all": sum(slab.pages for slab in told.slabs),
        "free": sum(slab.pages_free for slab in told.slabs),
        "shared": sum(slab.pages_shared for slab in told.slabs),
    }
    yield _gauges("pages", "Pages of keys and values on the device", ("of",), _labelled(pages))


def _tiers(told: EngineStatistics) -> Iterator[Metric]:
    used = [((tier.tier,), tier.bytes_used) for tier in told.tiers]
    limit = [((tier.tier,), tier.bytes_limit) for tier in told.tiers]
    moved = [
        ((tier.tier, direction), count)
        for tier in told.tiers
        for direction, count in (("out", tier.bytes_out), ("in", tier.bytes_in))
    ]
    yield _gauges("tier_bytes", "Memory that sessions have off the device", ("tier",), used)
    yield _gauges("tier_bytes_limit", "The most that sessions may have off the device", ("tier",), limit)
    words = "Bytes of sessions that left for a tier (out) or came back from it (in)"
    yield _counters("tier_moved_bytes", words, ("tier", "direction"), moved)


def _weights(weights: WeightsStatistics) -> Iterator[Metric]:
    yield _gauge("weights_on_device_bytes", "Weights on the device", weights.bytes_on_device)
    yield _counter("weights_moved_bytes", "Bytes of weights that crossed to the device", weights.bytes_moved)
    yield _counter("weights_waited_seconds", "Seconds that passes waited for weights", weights.waited_seconds)
    yield _counter("streamed_pass_seconds", "Seconds of passes while weights stream", weights.pass_seconds)


def _prefetches(prefetches: PrefetchStatistics) -> Metric:
    outcomes = {"hit": prefetches.hits, "late": prefetches.late, "wasted": prefetches.wasted}
    words = "Sessions brought back before they were asked for"
    return _counters("prefetches", words, ("outcome",), _labelled(outcomes))


def _labelled(values: Mapping[str, float | None]) -> Samples:
    return [((label,), value) for label, value in values.items()]


def _gauge(name: str, words: str, value: float | None) -> Metric:
    return _gauges(name, words, (), [((), value)])


def _counter(name: str, words: str, value: float) -> Metric:
    return _counters(name, words, (), [((), value)])


def _gauges(name: str, words: str, labels: tuple[str, ...], samples: Samples) -> Metric:
    return _filled(GaugeMetricFamily(f"djinn_{name}", f"{words}.", labels=labels), samples)


def _counters(name: str, words: str, labels: tuple[str, ...], samples: Samples) -> Metric:
    return _filled(CounterMetricFamily(f"djinn_{name}", f"{words}.", labels=labels), samples)


def _filled(family: GaugeMetricFamily | CounterMetricFamily, samples: Samples) -> Metric:
    """Return the family with its samples; unmeasured ones are left out."""
    for labels, value in samples:
        if value is not None:
            family.add_metric(labels, value)
    return family
