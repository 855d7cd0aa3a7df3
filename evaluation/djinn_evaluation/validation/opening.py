"""The engines of `validation`: share of the card, address, time limit, and the copies into their rings."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeVar

from djinn_evaluation.configuration.sections import Server, ValidationFile
from djinn_evaluation.course import Course, Unmeasured
from djinn_evaluation.link import Link, TimedCopy
from djinn_evaluation.memory import bytes_of
from djinn_evaluation.serving import is_afar
from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.errors import DjinnError, UsageError
from djinn_jupyter.units import GIB
from djinn_jupyter.wire.nouns import LayerCopy, WeightsStatistics

Made = TypeVar("Made")
PAGES_SHARE = 8  # an engine keeps an eighth of its allowance for pages
SMALL_PAGE = 16
HEADROOM = 9 / 10  # of an imposed card; the rest is for a pass's other allocations
STREAMING_SHARE = 3 / 4  # of a model's size, where the ring could hold all of it


class AnswerLate(DjinnError):
    """The engine did not answer within `server.timeout_seconds`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CardLimits:
    """Bytes for weights and pages, and the whole `imposed` card; `shrunk`: the ring would have held the model."""

    allowed: int
    shrunk: bool
    imposed: int | None = None

    def options(self) -> dict[str, Any]:
        """Return the engine's options; pages are small beside a small model's slots."""
        return {
            "device_memory": self.allowed,
            "card_memory": self.imposed,
            "page_positions": SMALL_PAGE if self.shrunk else None,
        }


def card_for(ring_gb: float, limit_gb: float | None, weights: int) -> CardLimits:
    """Size a card for a ring of at most `ring_gb`, within `limit_gb`, small enough that `weights` stream."""
    ring = ring_gb * GIB * PAGES_SHARE / (PAGES_SHARE - 1)
    allowed = min(ring, float("inf") if limit_gb is None else limit_gb * GIB * HEADROOM)
    shrunk = weights < allowed
    return CardLimits(
        allowed=int(weights * STREAMING_SHARE if shrunk else allowed), shrunk=shrunk, imposed=bytes_of(limit_gb)
    )


def endpoint(server: Server) -> str:
    """Return the address that an engine listens on. UsageError where it is not this machine's, or the port is taken."""
    try:
        family, _, _, _, address = socket.getaddrinfo(server.host, server.port, type=socket.SOCK_STREAM)[0]
    except socket.gaierror:
        raise UsageError(f"server.host is {server.host!r}, which is no address; write localhost.") from None
    host = str(address[0])
    with socket.socket(family, socket.SOCK_STREAM) as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            tried.bind((host, server.port))
        except OSError as error:
            raise UsageError(
                f"An engine cannot listen on port {server.port} of {server.host} ({error.strerror}); set server.port "
                "to one that is free, and server.host to an address of this machine."
            ) from None
    return f"tcp://[{host}]:{server.port}" if ":" in host else f"tcp://{host}:{server.port}"


def options_of(course: Course, file: ValidationFile) -> dict[str, Any]:
    """Return the options that all engines of the run are started with; none for one that runs already."""
    return {} if course.setup.server is not None else {"listen": endpoint(file.server), "threads": 1}


def imposed(file: ValidationFile, limit_gb: float | None) -> float | None:
    """Return the limit where it is enforced, else None."""
    return limit_gb if file.hardware.enforce_vram_limit else None


def with_link(fields: dict[str, Any], link: Link, copies: Iterable[TimedCopy]) -> dict[str, Any]:
    """Return the fields with the link of its copies; undecided where they were held against none."""
    found = {**fields, "link": link.fields(copies)}
    if fields["failures"] or not link.left_open:
        return found
    return {**found, "passed": Unmeasured(reason=link.left_open[0]), "undecided": link.left_open}


def within(seconds: float, work: Callable[[], Made]) -> Made:
    """Return the result of `work`, or raise AnswerLate after `seconds`; its thread then ends with the engine."""
    made: Future[Made] = Future()

    def do() -> None:
        try:
            made.set_result(work())
        except BaseException as error:  # noqa: BLE001  raised again in the thread that waits
            made.set_exception(error)

    thread = threading.Thread(target=do, name="djinn-experiment-asking", daemon=True)
    thread.start()
    thread.join(seconds)
    if not made.done():
        raise AnswerLate(f"The engine did not answer within {seconds:g} s (server.timeout_seconds).")
    return made.result()


def weights_of(engine: RemoteEngine) -> WeightsStatistics:
    """Return where the weights are, brought back first where that is this process's to do."""
    if not is_afar(engine):
        return engine.wake().weights
    found = engine.statistics().weights
    assert found is not None  # every engine has them
    return found


def arrived(engine: RemoteEngine, since: int, timeout: float) -> tuple[LayerCopy, ...]:
    """Return the layer copies after number `since` once all asked for are there; AnswerLate after `timeout`."""
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        copies = engine.copies(since)
        if (copies[-1].number if copies else since) >= weights_of(engine).layer_copies:
            return copies
    raise AnswerLate(f"Copies of layers were sent for and have not come within {timeout:g} s (server.timeout_seconds).")
