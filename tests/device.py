"""The device that tests of the engine compute on: that of DJINN_DEVICE, else the GPU that is there, else the CPU."""

from __future__ import annotations

from djinn_jupyter.engine.model.loading.load import choose_device

DEVICE = choose_device(None)
