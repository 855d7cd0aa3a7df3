"""Experiments as they are, with an engine of this process in place of one of their own: a fault can be planted in it.

The engine is a real one of a tiny model, moved by a thread, behind a real service and its sockets; plain Hugging Face
is the baselines' own class without its process.
"""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from transformers import AutoModelForCausalLM

from djinn_evaluation import link, pressure
from djinn_evaluation.agents import experiment as agents
from djinn_evaluation.baselines import weights
from djinn_evaluation.baselines.eager import Eager
from djinn_evaluation.memory import on_device
from djinn_evaluation.timing import checkpoint_cost, resume_latency
from djinn_evaluation.whitebox import experiment as whitebox
from djinn_evaluation.whitebox import pause
from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.api.session import RemoteSession
from djinn_jupyter.cli.main import main
from djinn_jupyter.engine.process.clients import ClientTable
from djinn_jupyter.engine.process.registration import SocketFolder
from djinn_jupyter.engine.process.sender import Outbox
from djinn_jupyter.engine.process.service import Service
from djinn_jupyter.engine.residency import eviction
from djinn_jupyter.errors import UnknownSession
from djinn_jupyter.link.channel import SocketChannel
from djinn_jupyter.link.io_thread import IoThread
from tests.device import DEVICE
from tests.engine.desk import Desk
from tests.engine.memory.weights.saved import desk_from, save
from tests.process.served import entry_for

WHITEBOX = """
model: {name: tiny, num_layers: 8}
experiment:
  num_trials: 1
  overhead_pairs: 1
  breakpoints: {layers: [2, 5]}
  inference: {input_length: 20, context_tokens: 20, token_accuracy_threshold: 95.0, continuation_tokens: 3}
  activation_steering: {modification_factor: 0.5, steering_layer: 4}
  concurrent_demo: {pause_duration_seconds: 0.01, paused_sessions: 2, idle_seconds: 0.05}
  memory_pressure_test: {enabled: false, num_sessions: 6, session_pause_layer: 3}
validation: {require_output_equivalence: true, require_steering_effect: true, require_concurrent_success: true}
duration: 1
output_dir: results
"""
RESUME = "{model: tiny, layers: [3], max_length: 20, warmup: 0, repeat: 2, output_dir: results}"
COST = "{model: tiny, layer: 3, max_length: 20, neighbour_tokens: 24, stop_interval_seconds: 0.01, output_dir: results}"
FILES = {"whitebox": WHITEBOX, "pressure": WHITEBOX, "resume-latency": RESUME, "checkpoint-cost": COST}
FASTEST = {"copies": {way: [(1 << 50, 1.0)] for way in ("in", "out")}}  # a link that only a copy in no time exceeds
STAND = pause._stand
EAGER = -1  # stands for the process of plain PyTorch
OURS_ALONE = ("--skip-pytorch", "--skip-vllm")


@contextmanager
def moved(desk: Desk) -> Iterator[RemoteEngine]:
    """A client of an engine that a thread moves."""
    outbox, folder, stopping = Outbox(), SocketFolder(), threading.Event()
    engine, desk.hears = desk.engine, outbox.post
    service = Service(
        ClientTable(engine, shut_down=stopping.set),
        outbox,
        commands=folder.endpoint("commands"),
    )

    def move() -> None:
        while not stopping.is_set():
            if not engine.tick():
                engine.mailbox.wait(min(0.05, engine.due_in))

    mover, thread = threading.Thread(target=move, name="engine"), IoThread()
    mover.start()
    service.start()
    entry = entry_for(service.commands)
    channel = SocketChannel(thread, entry, holder="tester", user="tester", notebook=None)
    try:
        yield RemoteEngine(channel, entry)
    finally:
        channel.close()
        thread.stop()
        stopping.set()
        engine.mailbox.wake()
        mover.join()
        service.stop()
        folder.remove()


@dataclass(slots=True)
class Ran:
    """The traces of a run: exit status, files, its requests to engines, baselines and sessions, its output."""

    status: int
    folder: Path
    engines: list[dict[str, Any]]
    baselines: list[tuple[str, str]]
    asked: list[tuple[str, Any]]
    said: str

    def times(self, verb: str, what: Any = None) -> int:
        """Count the requests of one verb to the sessions: breakpoints by their sites, runs by their new tokens."""
        return sum(verb == asked and what in (None, told) for asked, told in self.asked)

    def file(self, name: str) -> dict[str, Any]:
        return json.loads((self.folder / name).read_text())

    @property
    def report(self) -> str:
        """The report's text with its line breaks replaced by spaces."""
        return " ".join((self.folder / "report.md").read_text().split())


class NearBaseline:
    """Stands for the process of a baseline."""

    def __init__(self, module: str, eager: Eager, heard: list[tuple[str, str]]) -> None:
        self._module, self._eager, self._heard = module, eager, heard
        self.process = SimpleNamespace(pid=EAGER)

    def ask(self, verb: str, **arguments: Any) -> dict[str, Any]:
        if self._module == "copies":
            return FASTEST
        self._heard.append((self._module, verb))
        if self._module == "vllm":
            return {"status": "not_run", "vllm_installed": False, "api_tests": None, "conclusion": None}
        if verb == "load":
            return {"device": str(DEVICE)}
        return getattr(self._eager, verb)(**arguments)


@dataclass(frozen=True, slots=True)
class Counted:
    """A counter of tensors."""

    read: Callable[[], int]
    measured_by: str = "this test"


@dataclass(slots=True)
class Inside:
    """Runs experiments on engines of a tiny model, one for each set of options, in `folder`."""

    folder: Path
    attention: str | None = None
    family: str = "llama"
    layers: int = 8
    runs: int = 0
    engines: list[dict[str, Any]] = field(default_factory=list)
    baselines: list[tuple[str, str]] = field(default_factory=list)
    begin_idleness: Callable[[], None] = lambda: None
    _desks: dict[str, Desk] = field(default_factory=dict)
    _eager: Eager | None = None

    @property
    def model(self) -> Path:
        """The tiny model in a folder of its own."""
        folder = self.folder / self.family
        return folder if folder.exists() else save(folder, self.family, layers=self.layers)

    def desk(self, **options: Any) -> Desk:
        """The engine of these options, the same one each time."""
        named = {name: value for name, value in options.items() if value is not None and name != "threads"}
        key = str(sorted(named.items()))
        if key not in self._desks:
            self._desks[key] = desk_from(self.model, attention=self.attention, **named)
            for slab in self._desks[
                key
            ].engine.slabs:  # small segments, so that a small card is full; freed ones poisoned
                slab.shrink()
                slab.segments.poison, slab.segments.segment_slots = True, 4
        return self._desks[key]

    @contextmanager
    def engine_for(self, course: Any, model: str, **options: Any) -> Iterator[RemoteEngine]:
        self.engines.append({"model": model, **options})
        desk = self.desk(**options)
        try:
            with moved(desk) as engine:
                yield engine
        finally:
            for name in tuple(desk.engine.sessions):
                with suppress(UnknownSession):  # an agent of a run that was broken off ends by itself
                    desk.close(name)

    @contextmanager
    def pausing_engine_for(
        self, course: Any, model: str, *, idle_swap_seconds: float | None = None, **options: Any
    ) -> Iterator[RemoteEngine]:
        """The engine of the other options, with another idle threshold: a tiny one takes seconds to build. It holds
        from the moment at which all sessions stand, so that none has left by then, however long that took."""
        if idle_swap_seconds is None:
            with self.engine_for(course, model, **options) as engine:
                yield engine
            return
        options.pop("host_memory", None)
        given, evicting = {"idle_swap_seconds": idle_swap_seconds}, self.desk(**options).engine.residency.eviction
        before, evicting._idle_seconds = evicting._idle_seconds, float("inf")
        self.begin_idleness = lambda: setattr(evicting, "_idle_seconds", idle_swap_seconds)
        try:
            with self.engine_for(course, model, **options) as engine:
                self.engines[-1] |= given
                yield engine
        finally:
            evicting._idle_seconds, self.begin_idleness = before, lambda: None

    @contextmanager
    def counter_of(self, device: str, pid: int) -> Iterator[Counted]:
        """Count the tensors of a side, where both are in this process: eager's weights and what its stops hold, or what
        the engine that was asked for last has on the device."""
        if pid == EAGER:
            eager = self._eager
            yield Counted(lambda: weights.size_of(eager.model) + eager.held())
        else:
            known = ("model", "idle_swap_seconds")
            desk = self.desk(**{name: value for name, value in self.engines[-1].items() if name not in known})
            yield Counted(lambda: on_device(desk.engine.reading.statistics))

    def stand(self, counter: Any, going_on: Callable[[float], bool]) -> tuple[tuple[float, int], ...]:
        self.begin_idleness()
        return STAND(counter, going_on)

    @contextmanager
    def baseline(self, module: str) -> Iterator[NearBaseline]:
        if self._eager is None:
            self._eager = Eager()
            self._eager.device = DEVICE
            options = {} if self.attention is None else {"attn_implementation": self.attention}
            self._eager.model = AutoModelForCausalLM.from_pretrained(self.model, **options).eval().to(DEVICE)
        yield NearBaseline(module, self._eager, self.baselines)

    def run(
        self, name: str, *settings: str, flags: tuple[str, ...] = (), placed: bool = True, text: str | None = None
    ) -> Ran:
        """`djinn experiment NAME`, as a person starts it; `placed` names the folder of the results, `text` is a
        configuration in place of the usual one."""
        self.runs += 1
        folder, file = self.folder / f"run{self.runs}", self.folder / f"{name}{self.runs}.yaml"
        file.write_text(text or FILES[name])
        self.engines, self.baselines, said = [], [], io.StringIO()
        asked: list[tuple[str, Any]] = []
        chosen = [part for setting in settings for part in ("--set", setting)]
        with ExitStack() as stack:
            patch = stack.enter_context(pytest.MonkeyPatch.context())
            for module in (whitebox, pressure, resume_latency, checkpoint_cost, agents):
                patch.setattr(module, "engine_for", self.engine_for)
            for module in (whitebox, resume_latency, link):
                patch.setattr(module, "baseline", self.baseline)
            patch.setattr(agents, "predicted", lambda *asked: {"status": "not_run", "reason": "another test's"})
            patch.setattr(pressure, "LEAST_HERTZ", 1)  # one process: its samples wait for the engine's thread
            patch.setattr(pause, "engine_for", self.pausing_engine_for)
            patch.setattr(pause, "counter_of", self.counter_of)
            patch.setattr(pause, "_stand", self.stand)
            patch.setattr(eviction, "GIVE_BACK_SECONDS", 0.0)
            patch.setattr(eviction, "WRITE_THROUGH_SECONDS", float("inf"))  # orders alone copy, on a slow machine too
            breakpoint_at, run = RemoteSession.breakpoint, RemoteSession.run

            def noted_breakpoint(session: RemoteSession, site: Any, **options: Any) -> Any:
                asked.append(("breakpoint", site))
                return breakpoint_at(session, site, **options)

            def noted_run(session: RemoteSession, prompt: Any, **options: Any) -> Any:
                asked.append(("run", options["max_new_tokens"]))
                return run(session, prompt, **options)

            patch.setattr(RemoteSession, "breakpoint", noted_breakpoint)
            patch.setattr(RemoteSession, "run", noted_run)
            stack.enter_context(redirect_stdout(said))
            stack.enter_context(redirect_stderr(said))
            place = ("--output-dir", str(folder)) if placed else ()
            status = main(["experiment", name, "--config", str(file), *place, *chosen, *flags])
        return Ran(status, folder, self.engines, self.baselines, asked, said.getvalue())
