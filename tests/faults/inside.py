"""Experiments as they are, with an engine of this process in place of one of their own: a fault can be planted in it.

The engine is a real one of a tiny model, moved by a thread, behind a real service and its sockets; plain Hugging Face
is the baselines' own class without its process.
"""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from djinn_jupyter.cli.main import main
from djinn_jupyter.client.connection.channel import SocketChannel
from djinn_jupyter.client.connection.io_thread import IoThread
from djinn_jupyter.client.engine import RemoteEngine
from djinn_jupyter.client.session import RemoteSession
from djinn_jupyter.engine.process.clients import ClientTable
from djinn_jupyter.engine.process.outbox import Outbox
from djinn_jupyter.engine.process.registration import SocketFolder
from djinn_jupyter.engine.process.zmq_service import Service
from djinn_jupyter.experiments.baselines.eager import Eager
from djinn_jupyter.experiments.pressure import experiment as pressure
from djinn_jupyter.experiments.timing import checkpoint_cost, resume_latency
from djinn_jupyter.experiments.whitebox import experiment as whitebox
from tests.engine.desk import Desk
from tests.engine.memory.weights.saved import desk_from, save
from tests.process.served import entry_for

WHITEBOX = """
model: {name: tiny, num_layers: 8}
experiment:
  num_trials: 1
  breakpoints: {layers: [2, 5]}
  inference: {input_length: 20, context_tokens: 20, token_accuracy_threshold: 95.0, continuation_tokens: 3}
  activation_steering: {modification_factor: 0.5, steering_layer: 4}
  concurrent_demo: {pause_duration_seconds: 0.01}
  memory_pressure_test: {enabled: false, num_sessions: 6, session_pause_layer: 3}
validation: {require_output_equivalence: true, require_steering_effect: true, require_concurrent_success: true}
duration: 1
output_dir: results
"""
RESUME = "{model: tiny, layers: [3], max_length: 20, warmup: 0, repeat: 2, output_dir: results}"
COST = "{model: tiny, layer: 3, max_length: 20, neighbour_tokens: 24, stop_interval_seconds: 0.01, output_dir: results}"
FILES = {"whitebox": WHITEBOX, "pressure": WHITEBOX, "resume-latency": RESUME, "checkpoint-cost": COST}
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
        events=folder.endpoint("events"),
    )

    def move() -> None:
        while not stopping.is_set():
            if not engine.tick():
                engine.mailbox.wait(1.0)

    mover, thread = threading.Thread(target=move, name="engine"), IoThread()
    mover.start()
    service.start()
    entry = entry_for(service.commands, service.events)
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
        found: dict[str, Any] = json.loads((self.folder / name).read_text())
        return found

    @property
    def report(self) -> str:
        """The report's text with its line breaks replaced by spaces."""
        return " ".join((self.folder / "report.md").read_text().split())


class NearBaseline:
    """Stands for the process of a baseline."""

    def __init__(self, module: str, eager: Eager, heard: list[tuple[str, str]]) -> None:
        self._module, self._eager, self._heard = module, eager, heard

    def ask(self, verb: str, **arguments: Any) -> dict[str, Any]:
        self._heard.append((self._module, verb))
        if self._module == "vllm":
            return {"status": "not_run", "vllm_installed": False, "api_tests": None, "conclusion": None}
        reply: dict[str, Any] = {} if verb == "load" else getattr(self._eager, verb)(**arguments)
        return reply


@dataclass(slots=True)
class Inside:
    """Runs experiments on engines of a tiny model, one for each set of options, in `folder`."""

    folder: Path
    attention: str | None = None
    runs: int = 0
    engines: list[dict[str, Any]] = field(default_factory=list)
    baselines: list[tuple[str, str]] = field(default_factory=list)
    _desks: dict[str, Desk] = field(default_factory=dict)
    _eager: Eager | None = None

    @property
    def model(self) -> Path:
        """The tiny model in a folder of its own."""
        folder = self.folder / "llama"
        return folder if folder.exists() else save(folder)

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
            desk.close(*desk.engine.sessions)

    @contextmanager
    def baseline(self, module: str) -> Iterator[NearBaseline]:
        if self._eager is None:
            self._eager = Eager()
            self._eager.device = torch.device("cpu")
            options = {} if self.attention is None else {"attn_implementation": self.attention}
            self._eager.model = AutoModelForCausalLM.from_pretrained(self.model, **options).eval()
        yield NearBaseline(module, self._eager, self.baselines)

    def run(self, name: str, *settings: str, flags: tuple[str, ...] = (), placed: bool = True) -> Ran:
        """`djinn experiment NAME`, as a person starts it; `placed` names the folder of the results."""
        self.runs += 1
        folder, file = self.folder / f"run{self.runs}", self.folder / f"{name}{self.runs}.yaml"
        file.write_text(FILES[name])
        self.engines, self.baselines, said = [], [], io.StringIO()
        asked: list[tuple[str, Any]] = []
        chosen = [part for setting in settings for part in ("--set", setting)]
        with ExitStack() as stack:
            patch = stack.enter_context(pytest.MonkeyPatch.context())
            for module in (whitebox, pressure, resume_latency, checkpoint_cost):
                patch.setattr(module, "engine_for", self.engine_for)
            for module in (whitebox, resume_latency):
                patch.setattr(module, "baseline", self.baseline)
            patch.setattr(pressure, "LEAST_HERTZ", 1)  # one process: its samples wait for the engine's thread
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
