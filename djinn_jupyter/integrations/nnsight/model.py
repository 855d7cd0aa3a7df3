"""nnsight's model over an engine: its tree has the modules' names and no weights, and its passes are the engine's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import torch
from nnsight.intervention.envoy import Envoy
from nnsight.intervention.interleaver import EarlyStopException
from nnsight.modeling.transformers import TransformersModel
from torch._guards import detect_fake_mode
from transformers import AutoTokenizer

from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.api.likeness import open_temporarily
from djinn_jupyter.demo import MODEL_PATH
from djinn_jupyter.errors import UsageError
from djinn_jupyter.integrations.lines import SteppedLines
from djinn_jupyter.integrations.nnsight.locations import Locations, NamedValues, NnterpNames, recorded
from djinn_jupyter.integrations.nnsight.serving import Serving, generation_of, lines_of, require_known
from djinn_jupyter.link.channel import ask_for
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.nouns import AttentionName

FORWARDS: Final = ("__call__", "_call")
NO_GRAPH: Final = "Values of an engine carry no graph for gradients; `dj.attribute` computes them on the engine."


class EngineModule(Envoy):  # type: ignore[misc]
    """A module of the tree. Its forward runs only in passes of the engine, unless the tree has weights."""

    def interleave(self, fn: Any, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(f"{self.path} is not traced by itself on an engine: trace the model.")

    def __call__(self, *args: Any, hook: bool = False, **kwargs: Any) -> Any:
        _require_weights(self)
        return super().__call__(*args, hook=hook, **kwargs)


class LanguageModel(NnterpNames, TransformersModel):  # type: ignore[misc]
    """nnsight's model whose traces and generations run on a Djinn engine, in sessions of their own.

    `model` is the folder or the hub's name of the same model, by default the engine's own: its configuration makes the
    tree of modules, without weights. With `weights` they are loaded into this process too, for modules that a trace
    calls directly (`model.lm_head(hidden)`). `attention` is the attention of the sessions, by default the engine's.
    Other settings are nnsight's: `rename=`, `tokenizer=`. UsageError where the two models have different shapes.
    """

    def __init__(
        self,
        engine: RemoteEngine,
        model: str | Path | None = None,
        *,
        attention: AttentionName | None = None,
        weights: bool = False,
        tokenizer: Any = None,
        **settings: Any,
    ) -> None:
        place, described = _place_of(engine, model), engine.description
        self._engine, self._attention = engine, attention
        self._stepped = SteppedLines(engine.channel, self._opened)
        super().__init__(
            place,
            task="text-generation",
            tokenizer=AutoTokenizer.from_pretrained(place) if tokenizer is None else tokenizer,
            envoys=EngineModule,
            dtype=getattr(torch, described.dtype),
            attn_implementation=attention or described.attention,
            **settings,
        )
        modules = [(path, one._module) for path, one in self.named_modules()]
        self._locations = Locations(self.path, recorded(modules, self._module), described)
        self.named_values = NamedValues(self._locations, described)
        if weights:
            self.dispatch()

    @property
    def device(self) -> torch.device:
        """The device of the values that a trace reads."""
        if detect_fake_mode() is not None:
            return torch.device("meta")
        return torch.device("cpu")

    def __call__(self, *args: Any, hook: bool = False, **kwargs: Any) -> Any:
        _require_weights(self)
        return super().__call__(*args, hook=hook, **kwargs)

    def interleave(self, fn: Any, *args: Any, **kwargs: Any) -> Any:
        """Run nnsight's workers along passes of the engine."""
        if detect_fake_mode() is not None:  # in `scan`, which computes nothing
            return super().interleave(fn, *args, **kwargs)
        name = fn if isinstance(fn, str) else getattr(fn, "__name__", "")
        if name == "generate":
            return Envoy.interleave(self, self._generated, *args, **kwargs)
        if name in FORWARDS:
            return Envoy.interleave(self, self._forward, *args, **kwargs)
        raise NotImplementedError(f"An engine does not run {name!r}: use `trace` or `generate`.")

    def close(self) -> None:
        """Close the sessions of this model; the engine continues."""
        self._stepped.close()

    def _forward(self, *args: Any, **given: Any) -> Any:
        require_known(given)
        serving = Serving(self.interleaver, self._locations, self._stepped, lines_of(args, given))
        return self._served(serving.forward)

    def _generated(self, *args: Any, **given: Any) -> Any:
        generation = generation_of(given, self._engine.description)
        serving = Serving(self.interleaver, self._locations, self._stepped, lines_of(args, given))
        streamer = given.get("streamer") or self.generator.streamer._module
        pad = given.get("pad_token_id", self.tokenizer.pad_token_id)
        ids = self._served(lambda: serving.generate(generation, pad, streamer.put))
        streamer.end()
        return self.generator(ids, hook=True)

    def _served(self, run: Callable[[], Any]) -> Any:
        """Run, and close sessions whose place is unknown afterwards."""
        try:
            return run()
        except EarlyStopException:
            raise
        except BaseException as error:
            self._stepped.abandon()
            if "does not require grad" in str(error):
                error.add_note(NO_GRAPH)
            raise

    def _opened(self, number: int) -> str:
        name = open_temporarily(self._engine.channel, "nnsight")
        if self._attention is not None:
            ask_for(self._engine.channel, ask.SetAttention(session=name, attention=self._attention))
        return name


def _place_of(engine: RemoteEngine, model: str | Path | None) -> str:
    given = engine.entry.identity.model if model is None and engine.entry is not None else model
    if given is None:
        raise UsageError("This engine does not say where its model is: name the folder or the hub's name as `model`.")
    return str(MODEL_PATH if given == "demo" else given)


def _require_weights(envoy: Envoy) -> None:
    if any(parameter.is_meta for parameter in envoy._module.parameters()):
        raise NotImplementedError(
            f"{envoy.path} has no weights in this process, and an engine calls no module by itself: load them with "
            f"LanguageModel(engine, weights=True), or read the lens at a stop, `session.lens()`."
        )
