"""The device that tests of the engine compute on: that of DJINN_DEVICE, else the GPU that is there, else the CPU."""

from __future__ import annotations

from djinn_jupyter.engine.model.loading.load import choose_device
from djinn_jupyter.engine.system.device import leave_out_cudnn_attention

DEVICE = choose_device(None)
leave_out_cudnn_attention()  # the plain side attends by the same kernels, whichever of the two comes first
