"""Engines from the command line: start, stop, list, log, doctor."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import cast

from djinn_jupyter import extensions
from djinn_jupyter.cli.commands import Commands
from djinn_jupyter.errors import DjinnError, EngineError, EngineStartFailed, EngineUnavailable, UsageError, WireError
from djinn_jupyter.link import registry, starting
from djinn_jupyter.link.doctor import findings
from djinn_jupyter.link.starting import StartCallbacks
from djinn_jupyter.link.waiting import TerminalProgress
from djinn_jupyter.magics.table import MODULES
from djinn_jupyter.remote.addresses import PORT, key_folder
from djinn_jupyter.remote.ssh import entry_told
from djinn_jupyter.settings import GivenOptions, add_flags, chosen, flags_of, short_name
from djinn_jupyter.units import spell_bytes
from djinn_jupyter.wire.logs import ENDED, reason_of_end
from djinn_jupyter.wire.nouns import EngineStatistics, SessionDescription
from djinn_jupyter.wire.registry import Entry
from djinn_jupyter.wire.texts import aligned, distinct_labels, faults_line, notebook_shown

MOST_STARTS = 3  # in PERIOD_SECONDS, of a served engine that a signal ended
PERIOD_SECONDS = 3600.0
LOOK_SECONDS = 1.0  # between checks whether a served engine lives
RUN_THIS = "from djinn_jupyter.cli.main import main; sys.exit(main())"
KILL_SECONDS = 25.0  # it may have sessions to store first


def add_to(commands: Commands) -> None:
    _add_start(commands.add_parser("start", help="start the engine of a model, or find it running"))
    serve = commands.add_parser("serve", help="start it for other machines too, and stay until it is interrupted")
    serve.add_argument("model", help="demo, a folder or a hub name")
    add_flags(serve.add_argument, GivenOptions)
    serve.set_defaults(command=_serve, listen=f"tcp://0.0.0.0:{PORT}")
    stop = commands.add_parser("stop", help="end an engine")
    stop.add_argument("model", nargs="?", help="which, when several run")
    stop.add_argument("--all", action="store_true", help="end all of them")
    stop.add_argument("--force", action="store_true", help="also with sessions of others, also when it does not answer")
    stop.add_argument("--forget", action="store_true", help="its sessions do not come back at the next load")
    stop.set_defaults(command=_stop)
    commands.add_parser("list", help="the engines that run").set_defaults(command=_list)
    log = commands.add_parser("log", help="what an engine wrote")
    log.add_argument("model", nargs="?", help="which; by default the one that wrote last")
    log.add_argument("-n", "--lines", type=int, default=40)
    log.add_argument("--request", metavar="ID", help="all lines of a request, whose id its error told")
    log.set_defaults(command=_log)
    commands.add_parser("doctor", help="what is well here and what is not").set_defaults(command=_doctor)


def _add_start(start: argparse.ArgumentParser) -> None:
    add = start.add_argument
    add("model", help="demo, a folder or a hub name")
    add_flags(add, GivenOptions)
    add("--port", type=int, metavar="N", help="the same as --listen tcp://127.0.0.1:N")
    add("--gpu", type=int, metavar="N", help="the same as --device cuda:N")
    start.set_defaults(command=_start)


def _start(options: argparse.Namespace) -> int:
    from djinn_jupyter.api.loading import load

    _take_old_flags(options)
    given = cast(GivenOptions, chosen(GivenOptions, options))
    with TerminalProgress() as shown:
        engine = load(options.model, progress=shown.line, each_second=shown.second, **given)
    print(f"{engine!r} runs.")
    return 0


def _serve(options: argparse.Namespace) -> int:
    """Keep an engine that listens, and end it in order when this command is interrupted or terminated. An engine that a
    signal ended is started again, and its sessions return."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    given = cast(GivenOptions, chosen(GivenOptions, options))
    began: list[float] = []
    while True:
        entry = _loaded_beside(options.model, given)
        given["listen"] = entry.listens or given["listen"]  # a free port, kept for the next start
        status = _served(entry)
        reason = reason_of_end(registry.log_of(entry), entry.pid)
        began = [at for at in began if time.monotonic() - at < PERIOD_SECONDS]
        if status == 0 or reason is None or len(began) == MOST_STARTS:
            return status
        began.append(time.monotonic())
        print(f"The engine is started anew: {reason}", file=sys.stderr, flush=True)


def _loaded_beside(model: str, given: GivenOptions) -> Entry:
    """Load a model by another process: this one stays small, without zmq and anything that makes an engine fail."""
    command = starting.command(RUN_THIS, "entry", model, *flags_of(given))
    with TerminalProgress() as shown, subprocess.Popen(command, stdout=subprocess.PIPE) as beside:
        assert beside.stdout is not None
        try:
            entry = entry_told(beside.stdout, StartCallbacks(line=shown.line, second=shown.second))
        except KeyboardInterrupt:
            beside.send_signal(signal.SIGINT)  # it ends the engine that it started
            raise
    if entry is None:
        raise EngineStartFailed(f"The process that loads {model} ended with status {beside.returncode}: see above.")
    return entry


def _served(entry: Entry) -> int:
    """Follow the log of an engine until it ends; return the status of the command."""
    log = registry.FollowedLog(registry.log_of(entry))
    try:
        _tell_address(entry)
        while registry.is_alive(entry):
            log.copy()
            time.sleep(LOOK_SECONDS)
    except KeyboardInterrupt:
        _signal(entry)
        log.copy()
        print("The engine has ended; its sessions come back with the next one.")
        return 0
    print("The engine has ended; see its log with `djinn log`.", file=sys.stderr)
    return 1


def _tell_address(entry: Entry) -> None:
    found = entry.found
    admitted = ", ".join(sorted(key_folder().allowed().values())) or "no one yet: `djinn key allow`"
    named = f"Engine {short_name(found.model)} ({found.dtype} on {found.device})"
    print(f"{named} listens on {entry.listens}. Admitted: {admitted}.", flush=True)


def _take_old_flags(options: argparse.Namespace) -> None:
    """Replace the flags of the original's server by ours. UsageError where both are given."""
    for old, new, value in (("port", "listen", "tcp://127.0.0.1:{}"), ("gpu", "device", "cuda:{}")):
        number = getattr(options, old)
        if number is not None and getattr(options, new) is not None:
            raise UsageError(f"Give --{old} or --{new}, not both.")
        if number is not None:
            setattr(options, new, value.format(number))


def _stop(options: argparse.Namespace) -> int:
    meant = registry.running_engines() if options.all else (_only(options.model),)
    for entry in meant:
        lost = _end(entry, force=options.force, forget=options.forget)
        print(f"The engine of {entry.identity} has ended{_with(lost)}.")
    if not meant:
        print("No engine runs.")
    return 0


def _end(entry: Entry, *, force: bool, forget: bool) -> tuple[str, ...]:
    """End an engine and return the sessions that ended with it. An unreachable one (it hangs, or has another version's
    protocol) is ended by a signal, if `force` allows it."""
    from djinn_jupyter.api.loading import attach

    try:
        return attach(entry).stop(force=force, forget=forget)
    except (EngineError, WireError) as error:
        if not force:
            raise _needs_force(entry, error) from None
        print(f"djinn: {_cannot_be_asked(entry, error)}; its process is ended instead.", file=sys.stderr)
    _signal(entry)
    return ()


def _needs_force(entry: Entry, error: DjinnError) -> DjinnError:
    if isinstance(error, EngineUnavailable):
        return error
    return EngineUnavailable(f"{_cannot_be_asked(entry, error)}; end its process with `djinn stop --force`.")


def _cannot_be_asked(entry: Entry, error: DjinnError) -> str:
    said = str(error).rstrip(".")
    different = registry.difference(entry)
    if different is not None:
        said = f"it {different}"
    return f"The engine of {entry.identity} (process {entry.pid}) could not be asked to end ({said})"


def _signal(entry: Entry) -> None:
    from djinn_jupyter.api.engine import await_end

    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            if number == signal.SIGKILL:
                _log_forced_end(entry)
            os.kill(entry.pid, number)
            await_end(entry, KILL_SECONDS)
        except ProcessLookupError:
            break
        except EngineUnavailable:
            continue
        break
    registry.running_engines()  # removes its remaining files


def _log_forced_end(entry: Entry) -> None:
    """Log that this end was requested, so that `djinn serve` does not start the engine again."""
    with suppress(UsageError, OSError), registry.log_of(entry).open("a") as log:
        log.write(f"{ENDED}`djinn stop --force` killed process {entry.pid}, which did not end by itself.\n")


def _list(options: argparse.Namespace) -> int:
    entries = registry.running_engines()
    if not entries:
        print("No engine runs.")
        return 0
    names = _shown(entries)
    rows = [("MODEL", "DTYPE", "DEVICE", "ATTENTION", "PROCESS", "UP"), *map(_row, entries, names)]
    for entry, row in zip((None, *entries), aligned(rows), strict=True):
        print(row)
        for line in (*_address(entry), *_sessions(entry)) if entry else ():
            print(f"  {line}")
    return 0


def _shown(entries: Sequence[Entry]) -> list[str]:
    """Return folders by their last name, or in full where two have the same."""
    short = [Path(entry.identity.model).name for entry in entries]
    return [
        name if short.count(name) == 1 else entry.identity.model for name, entry in zip(short, entries, strict=True)
    ]


def _row(entry: Entry, name: str) -> tuple[str, ...]:
    found = entry.found
    up = time.strftime("%H:%M:%S", time.gmtime(max(0.0, time.time() - entry.started)))
    device = found.device if found.tensor_parallel == 1 else f"{found.device} x {found.tensor_parallel}"
    return name, *(str(value) for value in (found.dtype, device, found.attention, entry.pid)), up


def _address(entry: Entry) -> list[str]:
    """Return a line with the address at which an engine serves persons with keys; none without such an address."""
    return [f"listens on {entry.listens}"] if entry.listens else []


def _sessions(entry: Entry) -> list[str]:
    """Return a line for each session of an engine, or one with the reason why they are unknown; one for internal
    errors, and those on its methods."""
    from djinn_jupyter.api.loading import attach

    try:
        engine = attach(entry)
        sessions, statistics, methods = (
            engine.sessions(),
            engine.statistics(),
            registry.method_lines(engine.channel.welcome),
        )
    except DjinnError as error:
        return [f"{error.code}: {error}"]
    shown = distinct_labels(one.name for one in sessions)
    faults = [f"{faults_line(statistics.faults, statistics.last_fault)}."] if statistics.faults else []
    told = [_line(one, shown[one.name]) for one in sessions] or ["no sessions"]
    return [*told, *_memory(statistics), *faults, *methods]


def _memory(statistics: EngineStatistics) -> list[str]:
    """Return the process's memory, and the part of it that is in no account."""
    process = statistics.process
    if process is None or process.beyond_bytes is None or statistics.process_bytes is None:
        return []
    has, beyond = spell_bytes(statistics.process_bytes), spell_bytes(process.beyond_bytes)
    return [f"the process has {has}, {beyond} of it not accounted for"]


def _line(session: SessionDescription, shown: str) -> str:
    """Return a session's activity and its tokens, or the notebook for which it works."""
    if session.progress is None or session.notebook is None:
        return f"{shown} ({_stands(session)}), {session.tokens} tokens"
    return f"{shown} ({_stands(session)}), for {notebook_shown(session.notebook)}"


def _stands(session: SessionDescription) -> str:
    """Return `paused`, or `paused, on disk` for a session that has left the device."""
    return session.doing if session.residency == "resident" else f"{session.doing}, on {session.residency}"


def _log(options: argparse.Namespace) -> int:
    if options.lines < 1:
        raise UsageError("A log has at least one line to show: write djinn log -n 40.")
    if options.request is not None:
        print("\n".join(registry.lines_of_request(_logs_of(options.model), options.request)))
        return 0
    path = _log_of(options.model)
    print(f"{path}", file=sys.stderr)
    print(registry.last_lines(path, options.lines))
    return 0


def _log_of(model: str | None) -> Path:
    """Return the log of a running engine, or the last written one whose name begins like the model's."""
    for entry in registry.running_engines():
        if model is not None and _means(model, entry) and entry.log:
            return registry.log_of(entry)
    return _logs_of(model)[-1]


def _logs_of(model: str | None) -> list[Path]:
    """Return the logs whose names begin like the model's, the last written last. UsageError where there is none."""
    fitting = [log for log in registry.logs() if model is None or log.name.startswith(Path(model).name)]
    if not fitting:
        raise UsageError(f"There is no log{f' of {model}' if model else ''} in {registry.registry_folder()}.")
    return fitting


def _doctor(options: argparse.Namespace) -> int:
    extensions.magics(MODULES)  # clashing ones are left out, as in `%load_ext`
    found = findings()
    for finding in found:
        print(finding)
    return int(any(finding.level == "bad" for finding in found))


def named_or_all(model: str | None) -> tuple[Entry, ...]:
    """Return the engine of a model, or all running ones. Raises UsageError where that one does not run."""
    return registry.running_engines() if model is None else (_only(model),)


def _only(model: str | None) -> Entry:
    """Return the requested engine. Raises UsageError where none fits or several do."""
    entries = [entry for entry in registry.running_engines() if model is None or _means(model, entry)]
    if len(entries) == 1:
        return entries[0]
    if not entries:
        raise UsageError(f"No engine{f' of {model}' if model else ''} runs.")
    raise UsageError(f"Several engines run: {', '.join(str(e.identity) for e in entries)}; name one, or use --all.")


def _means(model: str, entry: Entry) -> bool:
    names = (entry.identity.model, entry.found.model, Path(entry.identity.model).name, str(entry.identity))
    return model in names or str(Path(model).resolve()) == entry.identity.model


def _with(lost: tuple[str, ...]) -> str:
    return f", and with it the sessions {', '.join(distinct_labels(lost).values())}" if lost else ""
