"""What a process sets before it loads a model: reuse of freed memory, and no collector among imported packages."""

from __future__ import annotations

import gc
import subprocess
import sys
import weakref
from collections.abc import Iterator

import pytest

from djinn_jupyter.engine.system.process import importing


class Ring:
    """A cycle: only the collector can free it."""

    def __init__(self) -> None:
        self.own = self


@pytest.fixture
def thawed() -> Iterator[None]:
    yield
    gc.unfreeze()
    gc.collect()


@pytest.mark.usefixtures("thawed")
def test_what_was_imported_is_never_looked_at_again_and_what_comes_later_is() -> None:
    with importing():
        assert not gc.isenabled()
        imported = Ring()
    assert gc.isenabled()
    later = Ring()
    refs = weakref.ref(imported), weakref.ref(later)
    del imported, later
    gc.collect()
    assert refs[0]() is not None
    assert refs[1]() is None


@pytest.mark.usefixtures("thawed")
def test_an_import_that_fails_leaves_the_collector_on() -> None:
    with pytest.raises(ModuleNotFoundError), importing():
        raise ModuleNotFoundError
    assert gc.isenabled()


FAULTS = """
import mmap, resource
from djinn_jupyter.engine.system.process import keep_freed
import ctypes
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
def passes(count):
    for _ in range(count):
        blocks = [libc.malloc(3 << 20) for _ in range(6)]
        for block in blocks:
            ctypes.memset(block, 1, 3 << 20)
        for block in blocks:
            libc.free(block)
told = keep_freed()
passes(1)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
passes(4)
print(told, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's own settings")
def test_activations_of_a_pass_lie_where_those_of_the_pass_before_lay() -> None:
    command = [sys.executable, "-c", FAULTS]
    told, faults = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert told == "True"
    assert int(faults) < 500  # 18,432 pages were written
