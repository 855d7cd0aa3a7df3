"""A stop inside a pass, asked of vLLM from a hook on a layer of its model: the layers that run all the same."""

from __future__ import annotations

from typing import Any

NAME = "stopped at a layer"


def stop_at_layer(llm: Any, tokens: list[int], sampling: Any) -> dict[str, Any]:
    """Run a request; when its first pass has come to the middle layer, abort it by the engine's own interface. Return
    the layers that ran in that pass before and after, the shape that the hook read there, and True where the pass
    stopped. The model has to be in this process; RuntimeError where none of its layers called the hook."""
    layers = llm.apply_model(layers_of)[0]
    watched = _Watched(llm.llm_engine, middle=len(layers) // 2)
    hooks = [layer.register_forward_hook(watched.hook_of(number)) for number, layer in enumerate(layers)]
    try:
        llm.llm_engine.add_request(NAME, {"prompt_token_ids": tokens}, sampling)
        while llm.llm_engine.has_unfinished_requests():
            llm.llm_engine.step()
    finally:
        for hook in hooks:
            hook.remove()
    if not watched.asked:
        raise RuntimeError("no pass came to the hook on the middle layer, so none was asked to stop")
    return {
        "layers": len(layers),
        "asked_after_layers": watched.before,
        "layers_run_after_it": watched.after,
        "hidden_state_read": watched.shape,
        "stops_inside_a_pass": watched.before + watched.after < len(layers),
    }


def layers_of(model: Any) -> Any:
    """Return the modules of the longest list in a model: its layers."""
    import torch

    return max((one for one in model.modules() if isinstance(one, torch.nn.ModuleList)), key=len)


class _Watched:
    """Counts the layers of the pass in which the request was aborted."""

    def __init__(self, engine: Any, middle: int) -> None:
        self._engine, self._middle, self._over = engine, middle, False
        self.asked, self.before, self.after = False, 0, 0
        self.shape: list[int] = []

    def hook_of(self, number: int) -> Any:
        def hook(module: Any, inputs: Any, output: Any) -> None:
            if self._over:
                return
            self._over = self.asked and number <= self._middle  # a further pass
            if self._over:
                return
            self.after += self.asked
            self.before += not self.asked
            if number == self._middle and not self.asked:
                hidden = output[0] if isinstance(output, tuple) else output
                self.asked, self.shape = True, list(hidden.shape)
                self._engine.abort_request([NAME])

        return hook
