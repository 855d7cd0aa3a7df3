"""Hugging Face accelerate: the same model by `device_map`, with weights beyond the budget offloaded to host or disk."""

from __future__ import annotations

import importlib.util
import tempfile
from typing import Any

from djinn_evaluation.baselines import weights
from djinn_evaluation.baselines.answering import serve
from djinn_evaluation.baselines.decoding import Decoding


class Accelerated(Decoding):
    """`status` of a load is not_run where accelerate is missing, with the reason."""

    def load(self, budget: int, to: str, **asked: Any) -> dict[str, Any]:
        """Load the model that the fields of weights.ModelAsked name. `budget` bytes of weights stay on the device, the
        rest goes `to` cpu or disk."""
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


if __name__ == "__main__":
    side = Accelerated()
    serve({"load": side.load, "generate": side.generate})
