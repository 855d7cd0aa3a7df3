"""`python -m djinn_jupyter.engine --model ...`: one engine process. Started by the client's launcher, or by hand.

Owns the command line, the log and the exit status of the process; imports the engine, and with it torch,
only when those are set up.
"""

from __future__ import annotations

import argparse
import faulthandler
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from djinn_jupyter._version import __version__
from djinn_jupyter.engine.process.registration import LauncherPipe, Restarts, end_with_parent
from djinn_jupyter.engine.system.config import EngineConfig
from djinn_jupyter.engine.system.log import LogForm, logging_to_standard_error
from djinn_jupyter.engine.system.process import allow_all, importing, keep_freed
from djinn_jupyter.errors import ClaimLost, DjinnError, EngineBroken, MissingDependency, UsageError
from djinn_jupyter.settings import GivenOptions, add_flags, check_least, chosen, part_of, short_name
from djinn_jupyter.units import parse_bytes
from djinn_jupyter.wire.logs import reason_of_end
from djinn_jupyter.wire.own import require_supported_platform
from djinn_jupyter.wire.registry import CLAIM_LOST_STATUS, Started, StartFailed

if TYPE_CHECKING:
    from djinn_jupyter.engine.process.daemon import Daemon

log = logging.getLogger("djinn_jupyter.engine")

STANDARD_ERROR = 2  # its descriptor


def parser() -> argparse.ArgumentParser:
    arguments = argparse.ArgumentParser(prog="python -m djinn_jupyter.engine", description="Serve one model.")
    add = arguments.add_argument
    add("--version", action="version", version=__version__)
    add("--model", required=True, help="demo, a folder or a hub name")
    add_flags(add, GivenOptions, amount=_amount)
    add("--silence-seconds", type=float, default=20.0, help="a client silent for so long has gone")
    add("--log", help="the file that standard output already goes to, for the registry")
    add("--launcher-pipe", type=int, metavar="FD", help="where the launcher reads how the start goes")
    add("--launcher-lock", type=int, metavar="FD", help="closed once the engine is in the registry")
    add("--parent-pipe", type=int, metavar="FD", help="it ends in order when the other end of this pipe is closed")
    add("--restarted-at", type=float, action="append", default=[], metavar="S", help="when it began anew before")
    return arguments


def _amount(text: str) -> int | None:
    try:
        return parse_bytes(text)
    except UsageError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def main(arguments: Sequence[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    faulthandler.enable(STANDARD_ERROR, all_threads=False)  # the log records a signal that ends the process
    launcher = LauncherPipe(options.launcher_pipe, lock=options.launcher_lock)
    with logging_to_standard_error(log_form(options)):
        return _ended(options, launcher)


def log_form(options: argparse.Namespace) -> LogForm:
    """Return the form of the log, which the ranks of a split model have too."""
    return LogForm(form=options.log_format, level=options.log_level, engine=short_name(options.model), path=options.log)


def _ended(options: argparse.Namespace, launcher: LauncherPipe) -> int:
    """Serve until the end, and return the status of the process."""
    launcher.send(Started(pid=os.getpid()))
    try:
        run(options, launcher)
    except DjinnError as error:
        log.error("%s: %s", error.code, error)
        launcher.send(StartFailed(code=error.code, message=str(error)))
        return CLAIM_LOST_STATUS if isinstance(error, ClaimLost) else 1
    except Exception as error:
        log.exception("The engine ended by an error that it does not know")
        launcher.send(StartFailed(code="EngineStartFailed", message=f"{type(error).__name__}: {error}"))
        return 1
    return 0


def run(options: argparse.Namespace, launcher: LauncherPipe) -> None:
    end_before = reason_of_end(Path(options.log)) if options.log else None  # before this process writes to it
    require_supported_platform()
    check_least(GivenOptions, chosen(GivenOptions, options))
    log.info("djinn-jupyter %s, process %d, model %s", __version__, os.getpid(), options.model)
    if options.threads is not None:
        os.environ["OMP_NUM_THREADS"] = str(options.threads)  # torch reads it once, on import
    if not sys.stderr.isatty():  # a running progress bar would be at the beginning of a line of the log
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")  # transformers and the hub read it on import
    if options.parent_pipe is not None:
        end_with_parent(options.parent_pipe)
    restarts = Restarts(options.restarted_at)
    allow_all()
    keep_freed()
    broken = _daemon(options, launcher, restarts, end_before).run()
    if isinstance(broken, EngineBroken) and restarts.allowed:
        restarts.begin()
    if broken is not None:
        raise broken


def _daemon(options: argparse.Namespace, launcher: LauncherPipe, restarts: Restarts, end_before: str | None) -> Daemon:
    """Import torch and make the daemon. Raises MissingDependency where an engine's packages are not installed."""
    try:
        with importing():
            from djinn_jupyter.engine.process.build import open_engine
            from djinn_jupyter.engine.process.daemon import Daemon, DaemonConfig, listen_to_signals
    except ModuleNotFoundError as error:
        if error.name not in ("torch", "transformers", "tokenizers", "safetensors"):
            raise
        raise MissingDependency(
            f"An engine needs {error.name}, which is not installed: pip install djinn-jupyter."
        ) from None
    given = chosen(GivenOptions, options)
    told = {"silence_seconds": options.silence_seconds, "log": options.log, "end_before": end_before}
    process = part_of(DaemonConfig, given, **told)
    daemon = Daemon(engine_config(options), process, open_engine=open_engine, launcher=launcher, restarts=restarts)
    listen_to_signals(daemon)
    return daemon


def engine_config(options: argparse.Namespace) -> EngineConfig:
    given = {"no_journal": False, **chosen(GivenOptions, options)}
    return part_of(EngineConfig, given, model=options.model, log=log_form(options))


if __name__ == "__main__":
    sys.exit(main())
