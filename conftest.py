"""Every test lives in a Jupyter of its own: its engines are not the user's, and none outlives the run. A notebook, or a
module of browser tests, has one to itself: they load engines by the same names, and none finds what another left."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Generator
from pathlib import Path

import psutil
import pytest
import zmq
from hypothesis import settings
from jupyter_client.connect import LocalPortCache

from djinn_evaluation.machine import computed_on
from djinn_jupyter.engine.system.process import importing
from tests.draw import leave_out
from tests.ports import port_of_a_kernel

# Short, because the path of an ipc socket may have no more than about a hundred characters.
HOME = Path(tempfile.mkdtemp(prefix="djt-"))

# A shell that runs the tests in the background has them ignore interrupts, and all that they start. Interrupts are
# part of what is tested.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A zmq context that becomes garbage together with its sockets (Jupyter's managers leave such) waits in its finalizer
# for sockets that the same collection would close after it: the collector hangs, in any test.
zmq.Context.__del__ = lambda self: None  # type: ignore[method-assign]

# Before anything imports torch. Two workers share two cores; a kernel or engine started by a test inherits this.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ["OMP_NUM_THREADS"] = "1"
    LocalPortCache.find_available_port = port_of_a_kernel  # type: ignore[method-assign]
os.environ.update(
    JUPYTER_RUNTIME_DIR=str(HOME / "run"),
    JUPYTER_DATA_DIR=str(HOME / "data"),
    JUPYTER_CONFIG_DIR=str(HOME / "config"),
    IPYTHONDIR=str(HOME / "ipython"),
    HF_HOME=str(HOME / "hf"),
    HF_HUB_OFFLINE="1",
    TOKENIZERS_PARALLELISM="false",
    DJINN_STATIC="1",
)

# What lands is tested on the same examples everywhere, so that no chance decides. `make explore` draws others, and
# many more; what it finds is mended and stays as an example. An example may take as long as a busy machine needs.
settings.register_profile("steady", derandomize=True, deadline=None)
settings.register_profile("exploring", print_blob=True)
settings.load_profile(os.environ.get("DJINN_EXAMPLES", "steady"))

NEEDS_A_GPU = "_on_a_gpu"  # how the name of such a test ends


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """Collecting imports what is tested and makes two million objects that stay: the garbage collector waits, and never
    looks at them again."""
    with importing():
        return (yield)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """A test that needs a GPU says so in its name; it is deselected, and counted as such, where none is computed on."""
    if not computed_on().startswith("cuda"):
        gone = [item for item in items if item.name.partition("[")[0].endswith(NEEDS_A_GPU)]
        config.hook.pytest_deselected(items=gone)
        items[:] = [item for item in items if item not in gone]
    for item in items:
        if item.path.suffix == ".ipynb" or item.get_closest_marker("browser"):
            item.add_marker(pytest.mark.processes)
    leave_out(items)


def _place(item: pytest.Item) -> Path:
    """Return the folder in which the engines that the test starts are found, and keep their sessions."""
    apart = item.path.suffix == ".ipynb" or item.get_closest_marker("browser")
    return HOME / item.path.stem if apart else HOME


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """A notebook is named by the conftest of its folder."""
    if _place(item) != HOME:  # else it stands, or is a fixture's
        _live_in(_place(item))
    if item.path.suffix != ".ipynb":
        os.environ.pop("JPY_SESSION_NAME", None)


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """After the fixtures: engines do not outlive the notebook or the module that started them."""
    place = _place(item)
    if place != HOME and (nextitem is None or _place(nextitem) != place):
        _end(_started_in(place))
        _live_in(HOME)


def _live_in(place: Path) -> None:
    os.environ.update(JUPYTER_RUNTIME_DIR=str(place / "run"), JUPYTER_DATA_DIR=str(place / "data"))


def pytest_unconfigure() -> None:
    """No engine or kernel outlives the run."""
    _end(_started_in(HOME))
    shutil.rmtree(HOME, ignore_errors=True)


def _started_in(place: Path) -> list[psutil.Process]:
    """Processes whose Jupyter runtime folder is below `place`, but for this one."""
    ours = []
    for process in psutil.process_iter():
        try:
            runtime = process.environ().get("JUPYTER_RUNTIME_DIR", "")
            if process.pid != os.getpid() and place in Path(runtime).parents:
                ours.append(process)
        except psutil.Error:
            continue  # gone meanwhile, or another user's
    return ours


def _end(processes: list[psutil.Process]) -> None:
    for process in processes:
        process.terminate()
    _, alive = psutil.wait_procs(processes, timeout=5)
    for process in alive:
        process.kill()
