"""A GPU that does no more work for the process: after an error nobody foresaw the engine notices, and begins anew."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from djinn_jupyter.engine.loop.parts import EngineParts
from djinn_jupyter.engine.loop.replies import Accounting
from djinn_jupyter.engine.system.faults import Faults
from djinn_jupyter.errors import EngineBroken
from tests.streams import CUDA


@pytest.fixture
def accounting(monkeypatch: pytest.MonkeyPatch) -> Accounting:
    monkeypatch.setattr(Accounting, "check", lambda self: None)  # the accounting is of the host, and sound
    parts: Any = SimpleNamespace(**dict.fromkeys(EngineParts.__annotations__))
    parts.storage_table, parts.faults = SimpleNamespace(devices=(CUDA,)), Faults()
    parts.runtime = SimpleNamespace(forward=None)
    return Accounting(parts, None)


def answers(monkeypatch: pytest.MonkeyPatch, error: Exception | None) -> None:
    def synchronize(device: torch.device) -> None:
        if error is not None:
            raise error

    monkeypatch.setattr(torch.cuda, "synchronize", synchronize)


def test_an_error_that_the_device_survives_ends_nothing(
    accounting: Accounting, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers(monkeypatch, None)
    accounting._faults.reply_to(RuntimeError("CUDA error: invalid argument"))
    accounting.require_sound()
    assert not accounting._faults.suspected


def test_a_device_that_is_lost_ends_the_engine(accounting: Accounting, monkeypatch: pytest.MonkeyPatch) -> None:
    answers(monkeypatch, RuntimeError("CUDA error: device-side assert triggered"))
    accounting.require_sound()  # nothing is suspected: nobody waits for the device
    accounting._faults.reply_to(RuntimeError("CUDA error: device-side assert triggered"))
    with pytest.raises(EngineBroken, match=r"does no more work for the engine .*device-side assert.* begins anew"):
        accounting.require_sound()
