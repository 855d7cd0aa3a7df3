"""The device's lack of memory in the midst of a pass, as one sentence: what it was for, and what to do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from djinn_jupyter.engine.model.loading.reasons import first_line
from djinn_jupyter.engine.system.out_of_memory import out_of_memory
from djinn_jupyter.errors import OutOfDeviceMemory


def no_memory_for(work: str, error: RuntimeError, advice: str) -> OutOfDeviceMemory:
    return OutOfDeviceMemory(f"The device has no memory left for {work}: {first_line(error).rstrip('.')}. {advice}")


@contextmanager
def device_memory_for(work: str, advice: str) -> Iterator[None]:
    """Raise OutOfDeviceMemory where the device has no memory left inside this block."""
    try:
        yield
    except RuntimeError as error:
        if not out_of_memory(error):
            raise
        raise no_memory_for(work, error, advice) from None
