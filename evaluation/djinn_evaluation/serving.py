"""The engine of a run by the public client, its own or one that runs already, and whether its model fits the file."""

from __future__ import annotations

import dataclasses
import ipaddress
import json
import os
import random
import socket
import statistics
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec
import psutil

import djinn_jupyter as dj
from djinn_evaluation.baselines.asking import digest, source_of
from djinn_evaluation.configuration.sections import ValidationFile, Whitebox
from djinn_evaluation.course import Course, ServerAddress, Unmeasured
from djinn_jupyter import model_files, units
from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.api.loading import attach
from djinn_jupyter.api.session import RemoteSession
from djinn_jupyter.api.stops import Finished, Paused
from djinn_jupyter.errors import DjinnError, UsageError
from djinn_jupyter.link.channel import Channel
from djinn_jupyter.link.spelling import spell_model
from djinn_jupyter.remote import addresses, hub_user, ssh
from djinn_jupyter.settings import Identity, SettledOptions
from djinn_jupyter.wire.registry import Entry
from djinn_jupyter.wire.texts import distinct_labels

OVER: Final = "the engine is reached over a line"
PROCESS_UNSEEN: Final = Unmeasured(reason=f"{OVER}, and its process is not seen from here")
LINK_UNSEEN: Final = Unmeasured(reason=f"{OVER}, and the link of its machine is not seen from here")
LINE_OF_ITS_OWN: Final = Unmeasured(reason=f"{OVER} of its own, and no other is laid before it")
SIDES_APART: Final = Unmeasured(
    reason=f"{OVER}, and the sides beside it compute on this machine: they are no comparison"
)
OTHER_BITS: Final = Unmeasured(
    reason=f"{OVER} and computes other bits than plain Hugging Face on this machine, without any stop: there is no "
    "reference"
)
DOWN: Final = "The line to the engine was down in the run: times of that while have it in them."
PINGS: Final = 9
FIELD: Final = "reached_over_a_line"  # of every result file of such a run


def is_afar(engine: RemoteEngine) -> bool:
    """Return True for an engine that is reached over a line, whose process and machine are not seen from here."""
    return engine.entry is not None and engine.entry.is_afar


@contextmanager
def beside(work: Callable[[threading.Event], None], name: str, channel: Channel) -> Iterator[None]:
    """Do the work in a thread until the end of the block, which sets its event and raises what it raised."""
    ended, failed = threading.Event(), list[Exception]()

    def guarded() -> None:
        try:
            work(ended)
        except Exception as error:  # noqa: BLE001  raised where the thread is joined
            failed.append(error)

    thread = threading.Thread(target=guarded, name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()  # and wait for its end, but not for a line that is down, for minutes perhaps
        thread.join(None if channel.down_since is None else 0)
    if failed:
        raise failed[0]


@contextmanager
def repeated(do: Callable[[], object], name: str, period: float, channel: Channel) -> Iterator[None]:
    """Call `do` every so many seconds in a thread until the end of the block, which raises what it raised."""

    def work(ended: threading.Event) -> None:
        while not ended.wait(period):
            do()

    with beside(work, name, channel):
        yield


def sentence(unmeasured: Unmeasured) -> str:
    """Return a reason as a sentence of the report."""
    return f"{unmeasured.reason[0].upper()}{unmeasured.reason[1:]}."


@contextmanager
def noted(course: Course, engine: RemoteEngine) -> Iterator[None]:
    """Have every file say that the engine is reached over a line; one that is down leaves the run undecided."""
    if not is_afar(engine):
        yield
        return
    course.afar = True
    milliseconds = 1000 * statistics.median(engine.ping() for _ in range(PINGS))
    course.every_file[FIELD] = {"round_trip_ms": milliseconds, "device": engine.description.device}
    course.remark(
        "The engine is reached over a line: its times have the line in them, sides beside it computed on this machine, "
        "so that times of two sides are no comparison, and the machine below is this one."
    )
    forget = engine.channel.watch_connection(lambda since: None if since is None else course.leave_open(DOWN))
    try:
        yield
    finally:
        forget()


OWN: Final = ("threads", "listen", "dtype", "device", "random_weights")
"""Options that are the engine's where a run asks none."""


def engine_at(server: ServerAddress) -> RemoteEngine:
    """Attach to this user's engine here at the address, else connect over a line, as for any named key."""
    entry = entry_here(server)
    return dj.connect(server.place, key=server.key) if entry is None else attach(entry)


def entry_here(server: ServerAddress) -> Entry | None:
    """Return the entry of this user's engine on this machine that listens at the address; None where there is none."""
    hosts, port = _resolved(server.place)
    if server.key is not None or not hosts:
        return None
    return next((entry for entry in dj.engines() if _listens(entry, hosts, port)), None)


@contextmanager
def attached(server: ServerAddress, model: str, **options: Any) -> Iterator[RemoteEngine]:
    """Yield the engine there and close the block's sessions. UsageError: another model, other options, or sessions."""
    entry = entry_here(server)
    if entry is None:
        engine = _required_afar(server, model, options)
    else:
        _require_model(entry, server, model, options.get("dtype"))
        engine = dj.load(entry.identity.model, progress=lambda line: None, **_asked(entry, options))
    if found := [session.name for session in engine.sessions()]:
        raise UsageError(
            f"The engine on {server} has sessions ({', '.join(distinct_labels(found).values())}): close them first "
            "(`session.close()`), for a run measures the memory and the evictions of the whole engine."
        )
    try:
        yield engine
    except BaseException:
        if engine.channel.down_since is None:
            with suppress(DjinnError):  # the block's own error is the one to tell
                _close_sessions(engine)
        raise
    _close_sessions(engine)


def as_served(file: ValidationFile, server: ServerAddress) -> ValidationFile:
    """Return the file with a running engine's model, dtype, idle threshold and host memory."""
    agent, (identity, idle, host) = file.agent_sleep_resume, _served(server)
    if agent is None:
        return file
    served = msgspec.structs.replace(
        agent,
        model_id=identity.model,
        dtype=identity.dtype,
        idle_threshold_seconds=SettledOptions.idle_swap_seconds if idle is None else idle,
        host_swap_pool_gb=None if host is None else host / units.GIB,
    )
    if served.idle_threshold_seconds >= served.sleep_duration_seconds:
        raise UsageError(
            f"The engine's sessions leave the device after {served.idle_threshold_seconds:g} s without use and the "
            f"agent sleeps for {served.sleep_duration_seconds:g} s: start the engine with --idle-swap-seconds 1."
        )
    return msgspec.structs.replace(file, agent_sleep_resume=served)


def _served(server: ServerAddress) -> tuple[Identity, float | None, int | None]:
    """Return a running engine's model and dtype, its idle threshold and its host memory."""
    entry = entry_here(server)
    if entry is not None:
        identity = dataclasses.replace(entry.identity, dtype=entry.found.dtype)
        return identity, entry.options.idle_swap_seconds, entry.options.host_memory
    engine = engine_at(server)
    limits, found = engine.statistics().limits, engine.description
    assert limits is not None  # every engine of this version has them
    return Identity(model=found.name, dtype=found.dtype), limits.idle_swap_seconds, limits.host_memory


def _required_afar(server: ServerAddress, model: str, options: dict[str, Any]) -> RemoteEngine:
    """Return the engine over a network connection. UsageError where it is not the one that the run needs."""
    engine = engine_at(server)
    assert engine.entry is not None  # it was reached by one
    addresses.require_model(engine.entry, Identity(model=spell_model(model), dtype=options.get("dtype")))
    limits = engine.statistics().limits
    needed = {name: value for name, value in options.items() if name not in OWN and value is not None}
    if lacking := [name for name, value in needed.items() if getattr(limits, name) != value]:
        flags = " ".join(f"--{name.replace('_', '-')} {needed[name]}" for name in lacking)
        raise UsageError(f"The engine on {server} has other limits than this run needs: serve it with {flags}.")
    return engine


def _close_sessions(engine: RemoteEngine) -> None:
    """Close the sessions that this process has open."""
    for session in engine.sessions():
        if session.holder == engine.holder:
            engine.session(session.name).close()


def _asked(entry: Entry, options: dict[str, Any]) -> dict[str, Any]:
    """Return the engine's identity, and the options of the run that an engine has for all its life."""
    identity = {name: value for name, value in dataclasses.asdict(entry.identity).items() if name != "model"}
    return {**identity, **{name: value for name, value in options.items() if name not in OWN}}


def _require_model(entry: Entry, server: ServerAddress, model: str, dtype: str | None) -> None:
    names = (entry.identity.model, entry.found.model)
    if spell_model(model) not in names or dtype not in (None, entry.found.dtype):
        wanted = model if dtype is None else f"{model} in {dtype}"
        raise UsageError(f"The engine on {server} serves {entry.found.model} in {entry.found.dtype}, not {wanted}.")


def _listens(entry: Entry, hosts: set[str], port: int) -> bool:
    host, _, bound = (entry.listens or "").removeprefix("tcp://").rpartition(":")
    return bound == str(port) and host.strip("[]") in {*hosts, "0.0.0.0", "::"}


def _resolved(place: str) -> tuple[set[str], int]:
    """Return those addresses of a place that are this machine's, and the port; none for a place of another kind."""
    if place.startswith(ssh.SCHEME) or place in (hub_user.HUB, ssh.CLUSTER):
        return set(), 0
    address = addresses.read_address(place)
    try:
        found = socket.getaddrinfo(address.host.strip("[]"), address.port, type=socket.SOCK_STREAM)
    except OSError:  # connecting says so, in words
        return set(), address.port
    return {str(one[4][0]) for one in found if _is_of_this_machine(str(one[4][0]))}, address.port


def _is_of_this_machine(address: str) -> bool:
    own = {one.address for interface in psutil.net_if_addrs().values() for one in interface}
    return address in own or ipaddress.ip_address(address.partition("%")[0]).is_loopback


PLACES = ("JUPYTER_RUNTIME_DIR", "JUPYTER_DATA_DIR")


@contextmanager
def engine_for(course: Course, model: str, **options: Any) -> Iterator[RemoteEngine]:
    """Start the engine of `model`, this run's alone, and end it with the block; or attach to the setup's server."""
    if course.setup.server is not None:
        course.tell(f"Attaching to the engine on {course.setup.server}")
        with attached(course.setup.server, model, **options) as running, noted(course, running):
            course.every_file["device"] = running.description.device
            yield running
        return
    with private_jupyter():
        course.tell(f"Starting the engine of {course.setup.named(model)}")
        try:
            engine = dj.load(model, progress=course.tell, **course.setup.words(), **options)
            course.every_file["device"] = engine.description.device
            yield engine
        finally:
            for entry in dj.engines():
                attach(entry).stop(force=True)


def reaches_over_a_line(course: Course) -> bool:
    """Return whether the run's engine is one that is reached over a line. Errors as of `dj.connect`."""
    return course.setup.server is not None and is_afar(engine_at(course.setup.server))


@contextmanager
def private_jupyter(places: Iterable[str] = PLACES, **variables: str) -> Iterator[Path]:
    """Hide the user's engines in the block: `places` are folders of the yielded one, `variables` have these values."""
    before = {name: os.environ.get(name) for name in (*places, *variables)}
    with tempfile.TemporaryDirectory(prefix="djinn-", ignore_cleanup_errors=True) as home:
        os.environ.update({name: f"{home}/{_folder(name)}" for name in places}, **variables)
        try:
            yield Path(home)
        finally:
            for name, value in before.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value


def _folder(variable: str) -> str:
    """Return a short name: the path of a socket may have no more than about a hundred characters."""
    return variable.removeprefix("JUPYTER_").removesuffix("_DIR").lower()


def pids_of(engine: RemoteEngine) -> list[int]:
    """Return the processes of a run on our side: this one, and the engine's where it is on this machine."""
    assert engine.entry is not None
    return [os.getpid()] if is_afar(engine) else [os.getpid(), engine.entry.pid]


def prompt_of(engine: RemoteEngine, length: int, seed: int) -> list[int]:
    """Return `length` random token ids of the engine's vocabulary."""
    return random_tokens(length, engine.description.vocab_size, seed)


def random_tokens(length: int, vocabulary: int, seed: int = 1) -> list[int]:
    return random.Random(seed).choices(range(vocabulary), k=length)


LAYERS = ("num_hidden_layers", "n_layer", "num_layers", "n_layers")
POSITIONS = ("max_position_embeddings", "n_positions")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """`layers` and `positions` are None where unknown. `require_*` raise UsageError where the model does not fit."""

    name: str
    layers: int | None = None
    positions: int | None = None

    def require_count(self, expected: int | None) -> None:
        if expected is not None and self.layers not in (None, expected):
            raise UsageError(f"model.num_layers is {expected}; {self.name} has {self.layers} layers.")

    def require_layers(self, named: Mapping[str, int]) -> None:
        """Require that the model has each layer; `named` maps a key of the configuration to its layer."""
        for key, layer in named.items():
            if self.layers is not None and layer >= self.layers:
                raise UsageError(f"{key} is {layer}; {self.name} has the layers 0 to {self.layers - 1}.")

    def require_room(self, prompt: int, new: int) -> None:
        if self.positions is not None and prompt + new > self.positions:
            raise UsageError(
                f"A prompt of {prompt} tokens and {new} new ones do not fit into the {self.positions} positions of "
                f"{self.name}."
            )


def require_whitebox(shape: Shape, file: Whitebox) -> None:
    """Raise UsageError where the model does not fit the file of a `whitebox` or `pressure` run."""
    shape.require_count(file.model.num_layers)
    shape.require_layers(file.layers_named())
    shape.require_room(file.experiment.inference.input_length, file.experiment.inference.continuation_tokens)


def foretold(model: str) -> Shape:
    """Return the shape by a folder's config.json. A hub name may not be downloaded yet: its shape is unknown."""
    file = model_files.path_called(source_of(model)) / "config.json"
    if not file.is_file():
        return Shape(name=model)
    whole = json.loads(file.read_text())
    found = whole.get("text_config", whole)
    return Shape(name=model, layers=_first(found, LAYERS), positions=_first(found, POSITIONS))


def shape_of(engine: RemoteEngine) -> Shape:
    found = engine.description
    return Shape(name=found.name, layers=found.layers, positions=found.context_length)


def _first(found: Mapping[str, Any], keys: tuple[str, ...]) -> int | None:
    return next((found[key] for key in keys if isinstance(found.get(key), int)), None)


def paused(stop: Any) -> Paused:
    """Return the stop; DjinnError where the run did not stop."""
    if not isinstance(stop, Paused):
        raise DjinnError(f"A run was to stop and did not: {stop!r}")
    return stop


def finished(stop: Any) -> Finished:
    """Return the result of a finished run; DjinnError where it did not end."""
    if not isinstance(stop, Finished):
        raise DjinnError(f"A run was to end and did not: {stop!r}")
    return stop


Outcome = tuple[tuple[int, ...], str]
"""Tokens of a run that ended, and the digest of its last logits."""


def outcome_of(stop: Any) -> Outcome:
    done = finished(stop)
    return done.tokens, digest_of(done)


def run_alone(engine: RemoteEngine, prompt: list[int], new: int) -> Outcome:
    """Run a prompt alone, without a stop, in a session that is closed afterwards."""
    session = engine.session("alone", fresh=True)
    found = outcome_of(session.run(prompt, max_new_tokens=new, ignore_eos=True))
    session.close()
    return found


def stopped_at(engine: RemoteEngine, name: str, layer: int, prompt: list[int], new: int) -> RemoteSession:
    """Stop a new session of that name after a layer of its prompt; `new` tokens are left to generate."""
    session = engine.session(name, fresh=True)
    session.breakpoint(f"resid_post.{layer}", when="step == 0")
    paused(session.run(prompt, max_new_tokens=new, ignore_eos=True))
    return session


def digest_of(done: Finished) -> str:
    """Return the digest of the bits of the fp32 logits a run ended with."""
    return digest(done.logits)
