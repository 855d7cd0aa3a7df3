"""The life of an engine process: load, serve, tick until told to stop or idle for too long, shut down in order.

Joins the parts; knows nothing of models or of the messages on the sockets.
"""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Callable, Mapping, Sized
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Protocol

from djinn_jupyter.engine.loop.mailbox import Mailbox
from djinn_jupyter.engine.process.clients import ClientTable, Served
from djinn_jupyter.engine.process.registration import LauncherPipe, Registration, Restarts, SocketFolder, make_entry
from djinn_jupyter.engine.process.sender import Outbox
from djinn_jupyter.engine.process.service import STOPPED, Service, draw
from djinn_jupyter.engine.system.config import EngineConfig
from djinn_jupyter.engine.system.faults import Faults
from djinn_jupyter.errors import ClaimLost, EngineBroken
from djinn_jupyter.files import Stamps
from djinn_jupyter.remote.engine.access_keys import Door, read_common, require_free
from djinn_jupyter.remote.engine.large_messages import no_budget
from djinn_jupyter.remote.engine.persons import admission_at, own_folders
from djinn_jupyter.wire import base, logs, nouns, registry
from djinn_jupyter.wire.replies import Event, Failed

if TYPE_CHECKING:
    from djinn_jupyter.engine.process.metrics import MetricsPage

log = logging.getLogger(__name__)

LONGEST_WAIT_SECONDS = 5.0
WATCHFUL_WAIT_SECONDS = 1.0  # while sessions rest on the device: copies, idle times and other programs' needs come due
QUIET_SECONDS = 0.002  # at most, between a reply and other work, which would keep the service from sending it


class Movable(Served, Protocol):
    """An engine as its process needs it: served by the client table, moved by `tick` on the thread that made it, which
    raises EngineBroken where the engine must restart, and ClaimLost where it must end. Then it is abandoned, else
    closed."""

    @property
    def mailbox(self) -> Mailbox: ...
    @property
    def scheduler(self) -> Sized: ...
    @property
    def files(self) -> Stamps: ...
    @property
    def extents(self) -> Mapping[str, int]: ...
    @property
    def watchful(self) -> bool: ...
    @property
    def due_in(self) -> float: ...
    @property
    def faults(self) -> Faults: ...
    @property
    def worked(self) -> Mapping[str | None, float]: ...
    def access(self, session: str, person: str) -> base.Access | None: ...
    def apply_owner_budgets(
        self, budget_of: Callable[[str], nouns.OwnerBudget], require_reader: Callable[[str], None] | None = None
    ) -> None: ...
    def tick(self, let_out: Callable[[], None]) -> bool: ...
    def close(self) -> None: ...
    def abandon(self) -> None: ...


OpenEngine = Callable[[EngineConfig, Callable[[Event], None], Callable[[str], None]], Movable]


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonConfig:
    """The settings of the process, beside those of its engine. `listen` is `tcp://host:port`, beside the private
    folder, or None; `quota` are the limits of each person there, `metrics` is `host:port` of a page for Prometheus or
    None for no page; `idle_seconds` counts while no client is attached and no session exists. `end_before` is the
    reason why a signal ended the previous engine."""

    listen: str | None = None
    quota: str | None = None
    metrics: str | None = None
    idle_seconds: float = 1800.0
    silence_seconds: float = 20.0
    log: str | None = None
    end_before: str | None = None


class Daemon:
    """Made on the main thread, which is then the engine's. `stop` may be called from any thread."""

    def __init__(
        self,
        config: EngineConfig,
        daemon: DaemonConfig,
        *,
        open_engine: OpenEngine,
        launcher: LauncherPipe,
        restarts: Restarts,
    ) -> None:
        self._config, self._daemon, self._restarts = config, daemon, restarts
        self._open_engine, self._launcher = open_engine, launcher
        self._stopping = False  # plain: `stop` is called by a signal handler, which may not wait for a lock
        self._mailbox: Mailbox | None = None

    def stop(self) -> None:
        self._stopping = True
        if self._mailbox is not None:
            self._mailbox.wake()

    def on_signal(self, *_: object) -> None:
        """Stop in order; while loading there is no session to keep, so exit at once."""
        if self._mailbox is None:
            raise SystemExit(143)
        self.stop()

    def run(self) -> EngineBroken | ClaimLost | None:
        """Serve until the engine ends. Return None after an orderly end, the error where the engine is broken or
        another has its sessions. Raises the errors of the engine's start."""
        if self._daemon.listen:
            require_free(self._daemon.listen)  # before the model is loaded
        common = read_common(self._daemon.quota, self._daemon.listen)
        outbox = Outbox()
        engine = self._open_engine(self._config, outbox.post, self._tell)
        self._mailbox = engine.mailbox
        door = Door.at(self._daemon.listen, draw) if self._daemon.listen else None
        budget_of = door.quotas(common) if door else no_budget
        clients = ClientTable(
            engine,
            shut_down=self.stop,
            silence_seconds=self._daemon.silence_seconds,
            admission=admission_at(door, engine.access, own_folders(self._config)),
            admitted=door.admitted.persons if door else tuple,
            end_before=self._daemon.end_before,
        )
        folder = SocketFolder()
        service = self._bind(clients, outbox, folder, door, engine, budget_of)
        if door is not None:
            engine.apply_owner_budgets(budget_of, service.require_reader)
        registration: Registration | None = None
        metrics: MetricsPage | None = None
        broken: EngineBroken | ClaimLost | None = None
        try:
            service.start()
            metrics = self._metrics(engine, service)
            entry = make_entry(
                self._config,
                engine.description,
                commands=service.commands,
                log=self._daemon.log,
                listens=service.listens,
                quota=self._daemon.quota,
                metrics=metrics.address if metrics else None,
                files=engine.files,
            )
            registration = Registration(entry)
            log.info(logs.READY + "%s in process %d", entry.found, entry.pid)
            self._launcher.ready(entry)
            self._move(engine, clients, registration, partial(outbox.let_out, QUIET_SECONDS))
        except EngineBroken as error:
            broken = error
            self._before_restart(error)
        except ClaimLost as error:
            broken = error
        finally:
            with engine.faults.during("it put its sessions away"):
                engine.abandon() if broken else engine.close()  # before the entry goes: its files are final then
            if registration is not None:
                with engine.faults.during("it withdrew its entry from the registry"):
                    registration.withdraw()
            if metrics is not None:
                metrics.close()
            service.stop(STOPPED if broken is None else Failed.of(broken))
            folder.remove()
            log.info(logs.ENDED + "%s", service.statistics())
        return broken

    def _before_restart(self, error: EngineBroken) -> None:
        log.critical("%s", error)
        if self._restarts.allowed:
            self._restarts.hold_lock(self._config.identity)

    def _bind(
        self,
        clients: ClientTable,
        outbox: Outbox,
        folder: SocketFolder,
        door: Door | None,
        engine: Movable,
        budget_of: Callable[[str], nouns.OwnerBudget],
    ) -> Service:
        return Service(
            clients,
            outbox,
            commands=folder.endpoint("commands"),
            door=door,
            broken=self.stop,
            faults=engine.faults,
            budget_of=budget_of,
            bounds=engine.extents,
        )

    def _metrics(self, engine: Movable, service: Service) -> MetricsPage | None:
        if self._daemon.metrics is None:
            return None
        from djinn_jupyter.engine.process.metrics import EngineCollector, MetricsPage  # 50 ms of every start

        collector = EngineCollector(
            engine.description, lambda: engine.reading, service.statistics, lambda: engine.worked
        )
        return MetricsPage(self._daemon.metrics, collector)

    def _move(
        self, engine: Movable, clients: ClientTable, registration: Registration, let_out: Callable[[], None]
    ) -> None:
        last_used = time.monotonic()
        while not self._stopping:
            with engine.faults.during("it looked after its entry in the registry"):
                registration.keep()
            if engine.tick(let_out):
                if not len(engine.scheduler):
                    engine.mailbox.wait(QUIET_SECONDS)
                continue
            if clients.attached or engine.reading.sessions:
                last_used = time.monotonic()
            idle = time.monotonic() - last_used
            if idle >= self._daemon.idle_seconds:
                log.info("No client and no session for %.0f s", idle)
                return
            engine.mailbox.wait(min(longest_wait(engine), self._daemon.idle_seconds - idle))

    def _tell(self, line: str) -> None:
        log.info("%s", line)
        self._launcher.send(registry.Progressed(line=line))


def longest_wait(engine: Movable) -> float:
    """Return the seconds after which an engine without mail is ticked again."""
    return min(WATCHFUL_WAIT_SECONDS if engine.watchful else LONGEST_WAIT_SECONDS, engine.due_in)


def listen_to_signals(daemon: Daemon) -> None:
    """Stop the daemon on SIGTERM and SIGINT, and ignore SIGHUP (a terminal that closes)."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, daemon.on_signal)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
