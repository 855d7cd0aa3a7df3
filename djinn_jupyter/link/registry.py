"""Find the engines of this machine by the entries that they wrote. Starts nothing.

Entries of other hosts (on a shared NFS home) are ignored and never touched. An entry of this host whose process has
gone is removed, with its sockets. Files of a living process stay: a process that is not visible from here (in another
container, with the same host name) is recognized by its lock.
"""

from __future__ import annotations

import json
import logging
import os
import re
import shlex
import stat
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from jupyter_core.paths import jupyter_runtime_dir

from djinn_jupyter import extensions
from djinn_jupyter.errors import EngineUnavailable, MalformedMessage, UsageError, VersionMismatch
from djinn_jupyter.wire import own, protocol
from djinn_jupyter.wire.greeting import Welcome
from djinn_jupyter.wire.logs import LOG_SUFFIX
from djinn_jupyter.wire.registry import ENTRY_SUFFIX, FOLDER, LIFE_SUFFIX, SOCKET_FOLDER_PREFIX, Entry, decode_entry
from djinn_jupyter.wire.texts import shown

log = logging.getLogger(__name__)


def registry_folder() -> Path:
    """Return the folder of entries, locks and logs, creating it if missing. UsageError unless private."""
    own.require_supported_platform()
    return own.make_own_folder(Path(jupyter_runtime_dir()) / FOLDER)


def running_engines() -> tuple[Entry, ...]:
    """Return the entries of the engines alive on this host, oldest first. Entries of dead engines are removed."""
    return tuple(entry for entry in Registry().look() if entry.host == own.host_name())


class Registry:
    """All entries of one kind, including those of other hosts. A file is read again only when it has changed, so that a
    check once a second costs little."""

    def __init__(self, suffix: str = ENTRY_SUFFIX) -> None:
        self._suffix = suffix
        self._read: dict[Path, tuple[tuple[int, int], Entry | None]] = {}

    def look(self) -> tuple[Entry, ...]:
        """Return the live engines of this host and, unchecked, those of other hosts, oldest first. Remove the files of
        dead engines of this host."""
        paths = sorted(registry_folder().glob(f"*{self._suffix}"))
        self._read = {path: self._entry(path) for path in paths}
        found: list[Entry] = []
        for path, (_, entry) in self._read.items():
            if entry is None:
                continue
            if entry.host != own.host_name() or is_alive(entry):
                found.append(entry)
            elif not _is_held(path.with_name(entry.file_stem() + LIFE_SUFFIX)):
                clear_away(path, entry)
        return tuple(sorted(found, key=lambda entry: entry.started))

    def _entry(self, path: Path) -> tuple[tuple[int, int], Entry | None]:
        try:
            status = path.stat()
        except FileNotFoundError:
            return (0, 0), None
        stamp = status.st_mtime_ns, status.st_ino
        known = self._read.get(path)
        return known if known is not None and known[0] == stamp else (stamp, read_entry(path))


def read_entry(path: Path) -> Entry | None:
    """Read an entry. Return None when it has just been removed, or cannot be read or trusted (which is logged)."""
    try:
        return decode_entry(own.read_own(path))
    except FileNotFoundError:
        return None
    except (OSError, MalformedMessage, UsageError) as error:
        log.warning("The registry entry %s is not readable: %s", path.name, error)
        return None


def is_alive(entry: Entry) -> bool:
    """Return True while the process that wrote the entry runs; a zombie does not count."""
    return entry.boot == own.boot_id() and own.process_mark(entry.pid) == entry.mark


def require_own_sockets(entry: Entry) -> None:
    """Raise EngineUnavailable where the folder of an engine's sockets is missing, or is not private to this user."""
    folder = entry.socket_folder()
    if folder is None:
        return  # over TCP the keys authenticate the engine
    again = "end it with `djinn stop --force` and load again, and what it kept of its sessions comes back"
    try:
        own.require_own_folder(Path(folder), again)
    except FileNotFoundError:
        raise EngineUnavailable(
            f"The engine of {entry.identity} (process {entry.pid}) cannot be reached: the folder of its sockets, "
            f"{folder}, was deleted; {again}."
        ) from None
    except UsageError as error:
        raise EngineUnavailable(f"The engine of {entry.identity} is not spoken to: {error}") from None


def clear_away(path: Path, entry: Entry) -> None:
    """Remove the files of a dead engine of this host: the sockets it names, its entry and its life file, no others.
    While a process holds the folder of the sockets all files stay until the next check: the locks of a killed engine
    are freed one after the other."""
    folder = entry.socket_folder()
    if (
        folder is not None
        and Path(folder).name.startswith(SOCKET_FOLDER_PREFIX)
        and not _remove_sockets(Path(folder), {Path(entry.commands).name})
    ):
        return
    with suppress(PermissionError):  # the folder may be read-only
        path.unlink(missing_ok=True)
        path.with_name(entry.file_stem() + LIFE_SUFFIX).unlink(missing_ok=True)


def _remove_sockets(folder: Path, names: set[str]) -> bool:
    """Remove the sockets and their folder if the folder is ours. Other files stay, and then so does the folder. Return
    False, and remove nothing, while a living process holds the folder."""
    with suppress(OSError, UsageError):
        own.require_own_folder(folder, "")
        if _is_held(folder):
            return False
        for name in names:
            if stat.S_ISSOCK((folder / name).lstat().st_mode):
                (folder / name).unlink()
    with suppress(OSError):
        folder.rmdir()
    return True


def _is_held(path: Path) -> bool:
    """Return True while a living process holds the lock of a file or folder. The lock ends with the process."""
    import fcntl  # not on Windows, where no engine runs

    try:
        descriptor = os.open(path, os.O_RDONLY) if path.is_dir() else own.open_own(path, os.O_RDONLY)
    except (FileNotFoundError, UsageError):
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)  # shared: two checks at once do not block each other
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


ID: Final = re.compile(r"^[0-9a-f]{4,32}$")
_BEGINNING: Final = re.compile(r"^(?:\d{4}-\d\d-\d\d |\{)")
_IDS: Final = re.compile(r" \[(?P<trace>[0-9a-f]{8}) (?P<span>[0-9a-f]{8}) .*\]$")
_PIECE_BYTES: Final = 2**20
_ERR: Final = 2


def log_of(entry: Entry) -> Path:
    """Return the log of a running engine. UsageError where it has none, or it is outside the registry's folder."""
    if entry.log is None:
        raise UsageError(f"The engine of {entry.identity} writes no log file: it was started by hand.")
    if Path(entry.log).parent != registry_folder():
        raise UsageError(
            f"The engine of {entry.identity} was started by hand and writes to {entry.log}; read it there."
        )
    return Path(entry.log)


def logs() -> list[Path]:
    """Return all logs, the latest written last; logs outlive their engines."""
    return sorted(registry_folder().glob(f"*{LOG_SUFFIX}"), key=lambda path: path.lstat().st_mtime)


def last_lines(path: Path, count: int) -> str:
    """Return the last `count` lines of a log. UsageError for a missing log, a link or another user's file."""
    try:
        written = own.read_own(path).decode(errors="replace").splitlines()
    except FileNotFoundError:
        raise UsageError(f"There is no log {path} any more.") from None
    return "\n".join(written[-count:])


def lines_of_request(paths: Iterable[Path], request: str) -> list[str]:
    """Return the log lines of a request, the oldest first, by the beginning of its own id or of its trace's. Each line
    includes its traceback. UsageError for an invalid id, and where no line has it."""
    asked = request.lower()
    if not ID.match(asked):
        raise UsageError("A request's id is at least 4 of its digits 0-9 and a-f, as 3f2a9c01.")
    every = list(paths)
    found = [line for path in every for line in _lines_of(_read(path), asked)]
    if not found:
        looked = ", ".join(str(path) for path in every)
        raise UsageError(f"No line of a request {request} is in {looked}: it came to no engine, or its lines are gone.")
    return found


def _read(path: Path) -> str:
    try:
        return own.read_own(path).decode(errors="replace")
    except FileNotFoundError:  # truncated since it was listed
        return ""


def _lines_of(written: str, asked: str) -> Iterator[str]:
    belongs = False
    for line in written.splitlines():
        if _BEGINNING.match(line):
            belongs = any(known.startswith(asked) or asked.startswith(known) for known in _ids_of(line))
        if belongs:
            yield line


def _ids_of(line: str) -> list[str]:
    """Return the ids of the trace and of the request in a line, plain or JSON."""
    if line.startswith("{"):
        try:
            told = json.loads(line)
        except ValueError:  # cut off by the death of its engine
            return []
        return [told[name] for name in ("trace_id", "span_id") if isinstance(told.get(name), str)]
    found = _IDS.search(line)
    return [found["trace"], found["span"]] if found else []


class FollowedLog:
    """Copies new lines of an engine's log to standard error, also after the log is truncated."""

    def __init__(self, path: Path) -> None:
        self._path: Path | None = path
        self._descriptor = own.open_own(path, os.O_RDONLY)
        os.lseek(self._descriptor, 0, os.SEEK_END)

    def copy(self) -> None:
        """Copy the new lines. Nothing more is copied once standard error is closed."""
        try:
            self._copy_rest()
            if self._path is not None and self._begun_anew(self._path):
                os.close(self._descriptor)
                self._descriptor = own.open_own(self._path, os.O_RDONLY)
                self._copy_rest()
        except FileNotFoundError:
            return  # between its old name and the new file
        except OSError:
            self._path = None

    def close(self) -> None:
        os.close(self._descriptor)

    def _begun_anew(self, path: Path) -> bool:
        return not os.path.samestat(os.fstat(self._descriptor), path.stat())

    def _copy_rest(self) -> None:
        while self._path is not None and (piece := os.read(self._descriptor, _PIECE_BYTES)):
            while piece:
                piece = piece[os.write(_ERR, piece) :]


# An engine of another version of Djinn: its registry entry shows it, before any message. Its Welcome lists its methods,
# which may differ.


def require_this_protocol(entry: Entry) -> None:
    """Raise VersionMismatch where the engine has another version of Djinn."""
    refusal = refusal_of(entry)
    if refusal is not None:
        raise VersionMismatch(refusal)


def refusal_of(entry: Entry) -> str | None:
    """Name the engine of another version and the remedy; None for an engine with this protocol."""
    different = difference(entry)
    if different is None:
        return None
    stop = f"`djinn stop --force {shlex.quote(str(entry.identity))}`"
    if entry.in_cluster:
        stop = f"`djinn cluster stop {shlex.quote(str(entry.identity))}`"
    after = "its sessions end with it" if entry.options.no_journal else "its sessions come back then"
    return (
        f"The engine of {entry.identity} (process {entry.pid}) {different}: end it with {stop} and load again; {after}."
    )


def difference(entry: Entry) -> str | None:
    """Return `is of another version of Djinn (...)`; None for an engine with this protocol."""
    different = protocol.difference(entry.version, entry.protocol)
    return None if different is None else f"is of another version of Djinn ({different})"


def method_lines(welcome: Welcome) -> list[str]:
    """Return a line for each method of a stranger that an engine and this side share, that only one of them has, and
    that one of them leaves out."""
    here, there, left_out = extensions.methods(), dict(welcome.methods), extensions.troubles().values()
    named, apart = {method.name: str(method) for method in here}, protocol.apart(there)
    shared = (method for method in here if not method.is_ours and method.name in there and method.name not in apart)
    return [
        *map(str, shared),
        *(f"the engine {word} {named.get(name, name)}" for name, word in apart.items()),
        *left_out,
        *(f"in the engine: {shown(why)}" for why in welcome.left_out if why not in left_out),
    ]
