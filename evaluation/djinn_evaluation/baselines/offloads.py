"""The same model by other tools' offload: accelerate's `device_map`, and DeepSpeed's ZeRO-Inference."""

from __future__ import annotations

import importlib.util
import os
import socket
import tempfile
from typing import Any

from djinn_evaluation.baselines import weights
from djinn_evaluation.baselines.asking import serve
from djinn_evaluation.baselines.weights import Decoding


class Accelerated(Decoding):
    """`status` of a load is not_run where accelerate is missing, with the reason."""

    def load(self, budget: int, to: str, **asked: Any) -> dict[str, Any]:
        """Load the model of weights.ModelAsked's fields; what exceeds `budget` bytes goes `to` cpu or disk."""
        if importlib.util.find_spec("accelerate") is None:
            return {"status": "not_run", "reason": "accelerate is not installed: pip install accelerate"}
        wanted = weights.ModelAsked(**asked)
        self.device = weights.device_for(wanted.device)
        loaded = wanted.read()
        self.model = self._dispatched(loaded, weights.layers_of(loaded), budget, to)
        return {"status": "success"}

    def _dispatched(self, model: Any, layers: Any, budget: int, to: str) -> Any:
        from accelerate import cpu_offload, dispatch_model, infer_auto_device_map

        if to == "cpu" and self.device.type == "cpu":
            return cpu_offload(model, execution_device=self.device)  # here a device map has no host beside the device
        own = "cpu" if self.device.type == "cpu" else self.device.index or 0
        most = {own: budget} if to == "disk" else {own: budget, "cpu": 1 << 50}
        places = infer_auto_device_map(model, max_memory=most, no_split_module_classes=[type(layers[0]).__name__])
        self._files = tempfile.TemporaryDirectory(prefix="djinn-accelerate-")
        return dispatch_model(model, device_map=places, offload_dir=self._files.name)


class ZeroInference(Decoding):
    """`status` of a load is not_run where DeepSpeed is missing, with the reason."""

    def load(self, budget: int, to: str, **asked: Any) -> dict[str, Any]:
        """Load the model of weights.ModelAsked's fields, at most `budget` bytes of it on the device."""
        if importlib.util.find_spec("deepspeed") is None:
            return {"status": "not_run", "reason": "deepspeed is not installed: pip install deepspeed accelerate"}
        wanted = weights.ModelAsked(**asked)
        self.device = weights.device_for(wanted.device)
        if self.device.type == "cpu":  # there it compiles its operators first, and streams from main memory to the same
            return {"status": "not_run", "reason": "ZeRO-Inference offloads from a GPU, and there is none here"}
        self.take(wanted.read(), budget, to)
        return {"status": "success"}

    def take(self, loaded: Any, budget: int, to: str) -> None:
        """Give a model on the host to DeepSpeed."""
        os.environ.update(_alone(self.device))
        import deepspeed  # type: ignore[import-not-found,unused-ignore]

        deepspeed.init_distributed(auto_mpi_discovery=False)
        asked = configuration(loaded.dtype, budget, to)
        self.model = deepspeed.initialize(model=loaded, config=asked)[0].module.eval()


def _alone(device: Any) -> dict[str, str]:
    """Return the environment of a group of one process."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    group = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": "0", "WORLD_SIZE": "1"}
    return {**group, "LOCAL_RANK": str(device.index or 0), "DS_ACCELERATOR": device.type}


def configuration(dtype: Any, budget: int, to: str) -> dict[str, Any]:
    """Return the keys of ZeRO-Inference: stage 3 without an optimizer, no weight kept on the device for good."""
    return {
        "train_micro_batch_size_per_gpu": 1,
        "fp16": {"enabled": str(dtype) == "torch.float16"},
        "bf16": {"enabled": str(dtype) == "torch.bfloat16"},
        "zero_optimization": {
            "stage": 3,
            "offload_param": {"device": to, "pin_memory": True},
            "stage3_max_live_parameters": budget // dtype.itemsize,
            "stage3_param_persistence_threshold": 0,
        },
    }


if __name__ == "__main__":
    serve(Accelerated, ZeroInference)
