"""On the PYTHONPATH of a test's engine processes: puts the in-memory engine in the place of the real one.

The model's name sets its engine's behaviour: `fake` serves; `missing` is not found; `crash` dies without a word;
a folder writes its process number into the named pipe `begun` in it, then waits until a test writes into `go` there.
"""

from __future__ import annotations

import os
import signal
import sys
import types
from pathlib import Path


def _open_engine(config, publish, progress):
    from djinn_jupyter.errors import ModelNotFound
    from tests.process.fake_engine import FakeEngine

    progress(f"loading {config.model}")
    if config.model == "missing":
        raise ModelNotFound("There is no model 'missing' here; try demo.")
    if config.model == "crash":
        os.write(2, b"a last line before the end\n")
        os._exit(3)
    if config.model == "fault":
        raise ZeroDivisionError("a fault of the engine")
    folder = Path(config.model)
    if (folder / "begun").exists():
        (folder / "begun").write_text(str(os.getpid()))
        (folder / "go").read_text()
    return FakeEngine(publish)


if os.environ.get("FAKE_SITE_HANGS") and "--launcher-pipe" in " ".join(sys.orig_argv):
    os.write(2, b"a last line before it hangs\n")
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    signal.pause()


_module = types.ModuleType("djinn_jupyter.engine.process.build")
_module.open_engine = _open_engine
sys.modules["djinn_jupyter.engine.process.build"] = _module
