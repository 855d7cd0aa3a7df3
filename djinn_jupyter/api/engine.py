"""The client's handle of an engine, and the tree of its sessions and their stops by fork."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from djinn_jupyter.api.arguments import typed
from djinn_jupyter.api.arrays import to_numpy, token_ids
from djinn_jupyter.api.closing import sessions_to_close
from djinn_jupyter.api.memory_trace import MemoryTrace
from djinn_jupyter.api.patches import Positions, no_ends, spell_positions
from djinn_jupyter.api.session import RemoteSession
from djinn_jupyter.api.tables import Listing, Tabular, in_columns
from djinn_jupyter.errors import EngineUnavailable, UnknownSession, UsageError
from djinn_jupyter.link.channel import Channel, all_sessions, ask_for
from djinn_jupyter.link.naming import default_session_name
from djinn_jupyter.link.registry import is_alive
from djinn_jupyter.link.transport import WireBytes
from djinn_jupyter.link.waiting import waiting
from djinn_jupyter.modules import api
from djinn_jupyter.verbs import EngineVerbs
from djinn_jupyter.wire import replies
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.modules import AdapterDescription, AddedModuleDescription
from djinn_jupyter.wire.nouns import (
    AttentionName,
    CheckpointDescription,
    EngineStatistics,
    LayerCopy,
    ModelDescription,
    ModuleDescription,
    SessionDescription,
    StopDescription,
)
from djinn_jupyter.wire.people import PersonDescription
from djinn_jupyter.wire.readings import Branch
from djinn_jupyter.wire.registry import Entry

if TYPE_CHECKING:
    import numpy as np


ROW: Final = ("session", "state", "forked_from", "stop", "site", "step", "position", "reason", "edited", "present")
NO_STOP: Final = (None,) * 6


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeRow:
    """One session of the tree. `own` are its stops that `parent` does not have. It branches off after the parent's
    first `at` stops, including stops that the parent shares with its own parent. `depth` 0 is a root."""

    branch: Branch
    own: tuple[StopDescription, ...]
    parent: str | None
    at: int
    depth: int


class Branches(Tabular, tuple[Branch, ...]):
    """The stops of all sessions: a tuple with one branch per session, and a table."""

    def columns(self) -> dict[str, list[Any]]:
        """Return the stops as lists by column, each once, in the session that made it. Columns: the session, its state
        and parent; the stop's index, site, step, position and reason, whether it is edited, and whether the session is
        at it. A session without own stops has one row with None."""
        return in_columns(ROW, [line for row in rows_of(self) for line in _lines(row)])


def _lines(row: TreeRow) -> Iterator[tuple[Any, ...]]:
    """Yield a row for each own stop of a session, or one row without a stop."""
    branch = row.branch
    origin = branch.forked_from.session if branch.forked_from is not None else None
    for stop in row.own:
        told = (stop.index, stop.site, stop.step, stop.position, stop.reason, stop.edited)
        yield (branch.session, branch.state, origin, *told, stop.index == branch.present)
    if not row.own:
        yield (branch.session, branch.state, origin, *NO_STOP, False)


def rows_of(branches: Sequence[Branch]) -> list[TreeRow]:
    """Return each session once, a fork below its parent. A fork of a session that no longer exists is a root."""
    there = {branch.session: branch for branch in branches}
    roots = [branch for branch in branches if _parent(branch, there) is None]
    return [row for root in roots for row in _below(root, there, None, 0)]


def _below(branch: Branch, there: dict[str, Branch], parent: Branch | None, depth: int) -> Iterator[TreeRow]:
    shared = 0 if parent is None else _shared(branch, parent)
    name = None if parent is None else parent.session
    yield TreeRow(branch=branch, own=branch.stops[shared:], parent=name, at=shared, depth=depth)
    for child in there.values():
        if child is not branch and _parent(child, there) == branch.session:
            yield from _below(child, there, branch, depth + 1)


def _parent(branch: Branch, there: dict[str, Branch]) -> str | None:
    """Return the session that this one was forked from, or None if it no longer exists. A parent whose name a session
    forked from this one reuses would make a cycle: it counts as gone."""
    seen = {branch.session}
    above = branch
    while above.forked_from is not None and above.forked_from.session in there:
        above = there[above.forked_from.session]
        if above.session in seen:
            return None
        seen.add(above.session)
    origin = branch.forked_from
    return origin.session if origin is not None and origin.session in there else None


def _shared(branch: Branch, parent: Branch) -> int:
    """Return the number of leading stops that both share. A stop without a number is never shared."""
    pairs = zip(branch.stops, parent.stops, strict=False)
    count = 0
    for one, other in pairs:
        if one.number is None or one.number != other.number:
            break
        count += 1
    return count


def read_weight(
    channel: Channel, name: str, rows: Positions, columns: Positions, *, fold_norm: bool
) -> np.ndarray[Any, Any]:
    """Return a matrix of the model, or its chosen rows and columns."""
    ends = no_ends(UsageError("Write the rows and columns of a matrix with both ends, as 0:100."))
    chosen = [spell_positions(part, ends) for part in (rows, columns)]
    request = ask.ReadWeight(name=name, rows=chosen[0], columns=chosen[1], fold_norm=fold_norm)
    return to_numpy(ask_for(channel, request).values)


# The client's handle of an engine: model, sessions, checkpoints, memory and shutdown.

END_SECONDS, SILENCE_SECONDS = 30.0, 0.05
SHOWN = ("name", "state", "stopped_at", "step", "tokens", "residency", "idle_seconds", "notebook")  # of a session


class SessionList(Listing[SessionDescription]):
    """The sessions of an engine, as this `holder` sees them. The card has the rows of a batch in one line, which
    opens."""

    _view = "session_list_view"
    holder: str

    @classmethod
    def of(cls, channel: Channel) -> SessionList:
        """List the sessions of a channel's engine."""
        made = cls(all_sessions(channel), SHOWN)
        made.holder = channel.holder
        return made


class RemoteEngine(EngineVerbs):
    """An engine that this process is attached to. `entry` is None where the channel leads to no separate process."""

    def __init__(self, channel: Channel, entry: Entry | None = None) -> None:
        self.channel, self.entry = channel, entry

    @property
    def description(self) -> ModelDescription:
        """The model: its layers, points and their locations, dtype, device and attention."""
        return self.channel.welcome.model

    @property
    def holder(self) -> str:
        """The engine's name for this kernel or process: the `holder` of the client's own sessions."""
        return self.channel.holder

    @property
    def wire_bytes(self) -> WireBytes:
        """The bytes sent and received between this process and the engine."""
        return self.channel.wire_bytes

    @typed
    def session(
        self,
        name: str | None = None,
        *,
        join: bool = False,
        fresh: bool = False,
        force: bool = False,
        attention: AttentionName | None = None,
        adapter: str | None = None,
    ) -> RemoteSession:
        """Open a session or attach to it; by default this notebook's. `join` enters a session that another kernel holds
        (else SessionHeld); `fresh` first discards its tokens, breakpoints and rules: SessionsWouldSuffer where it
        belongs to another notebook, unless `force`. `attention` "eager" computes attention step by step in this
        session, so that it can stop at `pattern` and `attn_scores` and edit them; IllegalMove where the session has
        tokens of another attention, UsageError where the model family has no eager attention. `adapter` names an added
        adapter, which only this session uses.

        >>> session = engine.session("patterns", attention="eager")
        >>> session.breakpoint("pattern.3").site, session.run("The capital of France is").shape
        ('pattern.3', (5, 4, 5))
        """
        chosen = name if name is not None else default_session_name()
        request = ask.Open(session=chosen, join=join, fresh=fresh, force=force)
        told = ask_for(self.channel, request)
        if told.note is not None:
            warnings.warn(told.note, stacklevel=3)
        opened = RemoteSession(self.channel, told.session.name)
        if attention is not None:
            opened.attend(attention)
        if adapter is not None:
            opened.adapter = adapter
        return opened

    def reach(self, name: str) -> RemoteSession:
        """Return a handle of a session without opening it, to read, fork or close a session of another notebook."""
        return RemoteSession(self.channel, name)

    @typed
    def close(self, *names: str, force: bool = False) -> tuple[str, ...]:
        """Close sessions by name, or by patterns (`"italy*"`) of the displayed names of this notebook's sessions; the
        rows of a batch close with its session. Return the names of the closed ones. With `force` also sessions of other
        notebooks, which are refused otherwise (SessionsWouldSuffer). UnknownSession, with nothing closed, where a name
        or pattern means none.

        >>> [engine.session(name).name for name in ("italy", "italy 2")]
        ['italy', 'italy 2']
        >>> engine.close("italy*")
        ('italy', 'italy 2')
        """
        if not names:
            raise UsageError('Name the sessions to close, or a pattern of their names: engine.close("italy*").')
        closed = []
        for name, rows in sessions_to_close(self.channel, names, force=force).items():
            for one in (name, *rows):
                with suppress(UnknownSession):  # another client has closed it meanwhile
                    self.reach(one).close(force=force)
                closed.append(one)
        return tuple(closed)

    def sessions(self) -> Listing[SessionDescription]:
        """Return the sessions of all notebooks and scripts, with their states and bytes."""
        return SessionList.of(self.channel)

    def people(self) -> Listing[PersonDescription]:
        """Return the persons at the engine, its own user first (`person` None). Each has memory on device, host and
        disk; where the caller may see them, also sessions, checkpoint bytes, running time of the last day, and the time
        of the last message. A person with a key sees these only for themselves."""
        return Listing(ask_for(self.channel, ask.ReadPeople()).people)

    def tree(self) -> Branches:
        """Return the stops of all sessions; stops that forks share have the same numbers."""
        return Branches(ask_for(self.channel, ask.ReadTree()).branches)

    def statistics(self) -> EngineStatistics:
        """Return the memory of the engine, in bytes, and what it has done so far."""
        return ask_for(self.channel, ask.ReadStatistics()).statistics

    @typed
    def memory_trace(
        self,
        *,
        hertz: float = 4.0,
        seconds: float | None = None,
        heard: Callable[[MemoryTrace], None] = lambda trace: None,
    ) -> MemoryTrace:
        """Sample memory over time in a background thread until the trace's `stop()`, or the end of its `with` block."""
        return MemoryTrace(self.channel, model=self.description.name, hertz=hertz, seconds=seconds, heard=heard)

    def checkpoints(self) -> Listing[CheckpointDescription]:
        """Return the checkpoint files of this model, including those of earlier engines. Of a long list only the latest
        are returned; `left_out` counts the others."""
        told = ask_for(self.channel, ask.ListCheckpoints())
        return Listing(told.checkpoints, left_out=told.left_out)

    def restore(
        self, name: str, session: str | None = None, *, replace: bool = False, force: bool = False
    ) -> RemoteSession:
        """Open `session`, by default this notebook's, in the state that the checkpoint (a name or a file's path) saved.
        An existing session of that name is replaced only with `replace`, another notebook's only with `force` as well
        (SessionsWouldSuffer). UnknownCheckpoint; CheckpointRefused for another model's or a damaged one."""
        chosen = session if session is not None else default_session_name()
        request = ask.RestoreCheckpoint(session=chosen, name=name, replace=replace, force=force)
        return RemoteSession(self.channel, ask_for(self.channel, request).session.name)

    def drop_checkpoint(self, name: str) -> int:
        """Delete the file of a checkpoint. Return the number of files deleted."""
        return ask_for(self.channel, ask.DropCheckpoint(name=name)).count

    def sleep(self) -> replies.WeightsMoved:
        """Put the weights to sleep: move them off the device until a request needs them. IllegalMove during a run."""
        return ask_for(self.channel, ask.Sleep())

    nap = sleep  # its former name

    def wake(self) -> replies.WeightsMoved:
        """Bring the weights back now; `seconds` is 0 when they were on the device."""
        return ask_for(self.channel, ask.Wake())

    def copies(self, since: int = 0) -> Listing[LayerCopy]:
        """Return completed copies of streamed layers with numbers above `since`, oldest first; only the last few
        thousand are kept."""
        return Listing(ask_for(self.channel, ask.ReadCopies(since=since)).copies)

    def tokenize(self, text: str, *, chat: bool = False) -> replies.Tokenized:
        """Return the tokens of a text as a prompt, with special tokens; with `chat` as a chat message. NoTokenizer.

        >>> engine.tokenize("The capital of France is").texts
        ('The', ' capital', ' of', ' France', ' is')
        """
        return ask_for(self.channel, ask.Tokenize(text=text, chat=chat))

    def detokenize(self, tokens: object) -> str:
        """Return the text of token ids. NoTokenizer."""
        return ask_for(self.channel, ask.Detokenize(tokens=token_ids(tokens))).text

    @typed
    def weight(self, name: str, *, rows: Positions = None, columns: Positions = None, fold_norm: bool = False) -> Any:
        """Return a matrix of the model as a numpy array. `x @ matrix` is the next point, apart from biases. Names:
        "W_U" [D, vocabulary], "W_E", "W_pos"; per layer "W_Q.5" [heads, D, features], "W_K", "W_V", "W_O", "W_in" [D,
        neurons], "W_gate", "W_out"; and "W_OV.5", "W_QK.5" [heads, D, D], fp32, of heads with their own keys and
        values. `W_Q.5[3]` is one head, `W_in.5[17]` one neuron. `rows` and `columns` (5, [1, 4], "0:100") select from
        the last two axes. `fold_norm` multiplies in the gain of the norm before the matrix, and subtracts the columns'
        mean where that norm subtracts a mean. UnknownSite where the model has no such matrix, or the matrix does not
        make its point.

        >>> engine.weight("W_U").shape, engine.weight("W_OV.5[3]").shape, engine.weight("W_out.5[17]").shape
        ((128, 1393), (128, 128), (128,))
        """
        return read_weight(self.channel, name, rows, columns, fold_norm=fold_norm)

    def modules(self) -> Listing[ModuleDescription]:
        """Return the modules of the model in the order of its own tree; modules that run once in a pass are sites."""
        return Listing(ask_for(self.channel, ask.ListModules()).modules)

    @typed
    def add_module(
        self, name: str, folder: str | Path, at: str | None = None, *, error_term: bool = True
    ) -> AddedModuleDescription:
        """Add the module in a folder to the model: an SAE or transcoder as SAELens saves it, circuit-tracer's
        transcoder of one layer, a linear probe or a tuned lens. It reads the point `at`, by default the one that its
        files name. Its values are then a site, `name.LAYER`, for breakpoints, watches, edits, rules, sweeps and the
        lens, in your sessions. This process reads the files; their tensors use the engine's memory. An edit of features
        keeps the SAE's reconstruction error, unless `error_term` is False. UsageError for a folder without a module for
        this point; SlabFull.

        >>> engine.add_module("sae", sae_folder, at="resid_post.4").site
        'sae.4'
        >>> session.breakpoint("sae.4[17]", when="value > 0.5").site
        'sae.4[17]'
        """
        return api.add_module(self.channel, name, folder, at, error_term=error_term)

    @typed
    def add_transcoders(
        self, name: str, folder: str | Path, point: str | None = None, *, error_term: bool = True
    ) -> Listing[AddedModuleDescription]:
        """Add the transcoders of all layers in a folder of circuit-tracer: one for each layer (`layer_0.safetensors`),
        or a cross-layer transcoder (`W_enc_0.safetensors`, `W_dec_0.safetensors`). Their sites are `name.LAYER`. They
        read `point` of their layers, such as "mlp_in", by default the hook that `config.yaml` names. If one is refused,
        the earlier ones stay. Errors as in `add_module`.

        >>> [one.site for one in engine.add_transcoders("clt", clt_folder, "mlp_in")][:3]
        ['clt.0', 'clt.1', 'clt.2']
        """
        return api.add_transcoders(self.channel, name, folder, point, error_term=error_term)

    def added_modules(self) -> Listing[AddedModuleDescription]:
        """Return the modules that you added."""
        return Listing(ask_for(self.channel, ask.ListAddedModules()).modules)

    @typed
    def remove_module(self, name: str) -> int:
        """Remove added modules: all of a name, or one (`sae.4`). Return the number removed. UnknownSite; UsageError
        while a session has a breakpoint, a rule or a watch there."""
        return api.remove_module(self.channel, name)

    @typed
    def name_features(self, site: str, names: Mapping[int, str] | str | Path) -> dict[int, str]:
        """Name features of the added module at `site`, and return the names of all by feature. `names` are texts by
        feature, an empty one to remove a name, or a file: Neuronpedia's export of explanations (`.jsonl`, `.jsonl.gz`,
        a folder of these), a JSON list of such objects, a JSON object of index to name, or a `.csv`. Stops,
        inspections, lists and graphs show names, in every notebook of yours. They belong to the module's files, and are
        kept on this machine. Where a row of a file is wrong, no name is changed. UsageError, with the line;
        UnknownSite; StorageFailed.

        >>> engine.add_module("sae", sae_folder, at="resid_post.4").site
        'sae.4'
        >>> engine.name_features("sae.4", {17: "capitals"})
        {17: 'capitals'}
        """
        named, note = api.name_features(self.channel, site, names)
        if note is not None:
            warnings.warn(note, stacklevel=3)
        return named

    @typed
    def feature_names(self, site: str) -> dict[int, str]:
        """Return the names that features of the added module at `site` have, by feature. UnknownSite; StorageFailed."""
        return api.feature_names(self.channel, site)

    @typed
    def add_adapter(self, name: str, folder: str | Path) -> AdapterDescription:
        """Add the LoRA adapter in a folder as PEFT saves it (`adapter_config.json`, `adapter_model.safetensors`). A
        session of yours uses it after `session.adapter = name`, on the same weights; all others use the model alone.
        This process reads the files; their tensors use the engine's memory. UsageError for a folder without an adapter
        for this model; SlabFull.

        >>> engine.add_adapter("sql", adapter_folder).targets
        ('q_proj', 'v_proj')
        >>> engine.session("tuned", fresh=True, adapter="sql").adapter
        'sql'
        """
        return api.add_adapter(self.channel, name, folder)

    def adapters(self) -> Listing[AdapterDescription]:
        """Return the adapters that you added, with the sessions that use each."""
        return Listing(ask_for(self.channel, ask.ListAdapters()).adapters)

    def remove_adapter(self, name: str) -> None:
        """Remove an adapter. UsageError while a session uses it, or for an unknown name."""
        ask_for(self.channel, ask.RemoveAdapter(name=name))

    def ping(self) -> float:
        """Return the seconds of one round trip to the engine."""
        begun = time.perf_counter()
        ask_for(self.channel, ask.Ping())
        return time.perf_counter() - begun

    def stop(self, *, force: bool = False, forget: bool = False) -> tuple[str, ...]:
        """End the engine, wait until its process has gone, and return the names of the lost sessions: all with
        `forget`; otherwise none, because the next load restores them. SessionsWouldSuffer, unless `force`, when other
        kernels hold sessions, or with `forget` when sessions belong to other notebooks."""
        lost = ask_for(self.channel, ask.Shutdown(force=force, forget=forget)).sessions_lost
        if self.entry is not None and self.entry.is_afar:
            with suppress(EngineUnavailable):
                while True:
                    ask_for(self.channel, ask.Ping())
                    time.sleep(SILENCE_SECONDS)
        elif self.entry is not None:
            await_end(self.entry)
        return lost

    def __repr__(self) -> str:
        found = self.description
        return f"Engine {found.name} ({found.architecture}, {found.layers} layers, {found.dtype} on {found.device})"


@waiting("The end of the engine", "ends the waiting")
def await_end(entry: Entry, seconds: float = END_SECONDS) -> None:
    """Wait until the engine's process has gone; EngineUnavailable if it still runs after `seconds`."""
    deadline = time.monotonic() + seconds
    while is_alive(entry):
        if time.monotonic() > deadline:
            late = f"was told to end and has not within {seconds:.0f} s; end it with `djinn stop --force`."
            raise EngineUnavailable(f"The engine of {entry.identity} (process {entry.pid}) {late}")
        time.sleep(0.01)
