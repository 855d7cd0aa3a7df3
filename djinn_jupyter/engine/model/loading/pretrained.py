"""Read a model from its files. Weights without a place in the model may be left out, or are a reason to refuse.

The rule: a weight is in a checkpoint because something uses it. It may be left out where it belongs to another part,
for images or sound, that the served model lacks, or where the family's own class declares that it is not needed. The
language part would have used all others (scales of quantized weights, layers beyond the last, an adapter's matrices,
another head); computed without them, it is another model.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.quantizers.auto import AUTO_QUANTIZATION_CONFIG_MAPPING
from transformers.utils.import_utils import is_peft_available

from djinn_jupyter.engine.model.loading.gguf_file import pretrained_arguments
from djinn_jupyter.engine.model.loading.other_parts import around_text, other_parts, other_sections
from djinn_jupyter.engine.model.loading.reasons import unloadable
from djinn_jupyter.engine.model.loading.source import auto_classes, find_file, folder_of
from djinn_jupyter.engine.system.config import EngineConfig
from djinn_jupyter.errors import MissingDependency, ModelRefused
from djinn_jupyter.model_files import ADAPTER, weight_names

_SHOWN = 6


class Leftovers:
    """The names in a checkpoint that a model has no place for. `configuration` is the checkpoint's."""

    def __init__(self, model: PreTrainedModel, configuration: Any) -> None:
        self._modules = dict(model.named_modules())
        self._towers = tuple(other_parts(model))
        self._around = around_text(model)
        text_alone = type(model.config) is not type(configuration)  # then parts beside the text begin at its path
        self._containers = self._around[0 if text_alone else 1 :] if other_sections(configuration) else []
        self._declared = [re.compile(pattern) for pattern in model._keys_to_ignore_on_load_unexpected or ()]

    def used(self, unexpected: Iterable[str]) -> list[str]:
        """Return the unexpected names that the language part would have used."""
        return sorted(name for name in unexpected if not self._of_another_part(name))

    def left_out(self, unexpected: Iterable[str], names: Iterable[str]) -> str | None:
        """Return a sentence on the parts that are not served. `names` are all that the checkpoint holds."""
        parts = Counter(self._part(name) for name in {*unexpected, *self._ignored(names)})
        parts.update({tower: _weights_in(self._modules[tower]) for tower in self._towers})
        if not parts:
            return None
        shown = [f"{part} ({count} {'weight' if count == 1 else 'weights'})" for part, count in sorted(parts.items())]
        more = f" and {len(shown) - _SHOWN} more" if len(shown) > _SHOWN else ""
        return f"The language model alone is served; left out: {', '.join(shown[:_SHOWN])}{more}."

    def _of_another_part(self, name: str) -> bool:
        return self._in_tower(name) or self._deepest(name) in self._containers

    def _in_tower(self, name: str) -> bool:
        return any(name.startswith(f"{tower}.") for tower in self._towers)

    def _ignored(self, names: Iterable[str]) -> Iterable[str]:
        """Yield the names in whole parts and layers that the family's class declares unneeded."""
        for name in names:
            deepest = self._deepest(name)
            whole = deepest in self._around or isinstance(self._modules[deepest], nn.ModuleList)
            if whole and any(pattern.search(name) for pattern in self._declared):
                yield name

    def _deepest(self, name: str) -> str:
        """Return the path of the model's innermost module on the way to a tensor of that name."""
        path = name.rpartition(".")[0]
        while path and path not in self._modules:
            path = path.rpartition(".")[0]
        return path

    def _part(self, name: str) -> str:
        """Return the first path prefix of the name that is not in the model."""
        deepest = self._deepest(name)
        begin = len(deepest) + 1 if deepest else 0
        return name[:begin] + name[begin:].partition(".")[0]


def _weights_in(module: nn.Module) -> int:
    return sum(1 for _ in module.parameters())


def read_pretrained(
    config: EngineConfig,
    source: str,
    configuration: Any,
    dtype: torch.dtype | None,
    arguments: Mapping[str, Any],
) -> tuple[PreTrainedModel, list[str]]:
    """Return the model as saved, and sentences on its unserved parts. `arguments` go to `from_pretrained`.
    ModelNotFound, ModelRefused, MissingDependency."""
    notes = _adapter_notes(config, source)
    model, report = _whole(config, source, configuration, dtype, arguments)
    return model, notes + _left_out(config, source, configuration, model, report["unexpected_keys"])


def _whole(
    config: EngineConfig,
    source: str,
    configuration: Any,
    dtype: torch.dtype | None,
    arguments: Mapping[str, Any],
) -> tuple[PreTrainedModel, Any]:
    """Return the model with all its weights, from the first class that finds all its weights in the checkpoint: a model
    saved with its tower may name them differently than the language model alone. ModelRefused says what the first class
    lacks."""
    refused: list[ModelRefused] = []
    for auto in auto_classes(configuration):
        try:
            model, report = _from_pretrained(auto, config, source, configuration, dtype, arguments)
        except Exception as error:  # a library reading an arbitrary file raises anything
            raise unloadable(config, folder_of(config, source), error) from error
        if not report["mismatched_keys"] and not report["missing_keys"]:
            return model, report
        refused.append(ModelRefused(_lacking(config, model, report)))
    raise refused[0]


def _lacking(config: EngineConfig, model: PreTrainedModel, report: Any) -> str:
    if report["mismatched_keys"]:
        return _mismatched(config, report["mismatched_keys"])
    absent = sorted(report["missing_keys"])
    return (
        f"The checkpoint of {config.model} lacks {len(absent)} of the weights of {type(model).__name__}, "
        f"such as {absent[0]}; nothing is drawn in their place."
    )


def _from_pretrained(
    auto: Any,
    config: EngineConfig,
    source: str,
    configuration: Any,
    dtype: torch.dtype | None,
    arguments: Mapping[str, Any],
) -> Any:
    with pretrained_arguments(source) as named:
        return auto.from_pretrained(
            **named,
            config=configuration,
            revision=config.revision,
            dtype=dtype or "auto",
            trust_remote_code=config.trust_remote_code,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # `_whole` refuses them by name, with their sizes
            **attention_wish(config),
            **arguments,
        )


def _mismatched(config: EngineConfig, mismatched: set[tuple[str, tuple[int, ...], tuple[int, ...]]]) -> str:
    name, there, wanted = min(mismatched)
    return (
        f"The weights of {config.model} do not fit its config.json: {name} is {_by(there)} in the checkpoint and "
        f"{_by(wanted)} by the configuration, one of {len(mismatched)} that differ; they are of two models."
    )


def _by(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape))


def _left_out(
    config: EngineConfig, source: str, configuration: Any, model: PreTrainedModel, unexpected: set[str]
) -> list[str]:
    """Return a sentence on the parts of the checkpoint that are not served. ModelRefused where the language part uses
    one."""
    leftovers = Leftovers(model, configuration)
    if used := leftovers.used(unexpected):
        raise ModelRefused(
            f"The checkpoint of {config.model} holds {len(used)} {'weight' if len(used) == 1 else 'weights'} that "
            f"{type(model).__name__} has no place for, such as {used[0]}; computed without them it would be another "
            f"model.{_quantized(configuration)} If they are of no use, save it without them: "
            "AutoModelForCausalLM.from_pretrained(...).save_pretrained(FOLDER)."
        )
    folder = folder_of(config, source)
    sentence = leftovers.left_out(unexpected, () if folder is None else weight_names(folder))
    return [] if sentence is None else [sentence]


def _quantized(configuration: Any) -> str:
    """Return a sentence naming the checkpoint's quantization method where transformers does not know it."""
    fields = getattr(configuration, "quantization_config", None)
    method = fields.get("quant_method") if isinstance(fields, dict) else getattr(fields, "quant_method", None)
    if method is None or method in AUTO_QUANTIZATION_CONFIG_MAPPING:
        return ""
    return f" It is quantized by {method}, which the installed transformers does not load."


def attention_wish(config: EngineConfig) -> dict[str, str]:
    """Return the requested attention. Without a request the library takes sdpa where the family has it, else eager."""
    return {} if config.attention is None else {"attn_implementation": config.attention}


def _adapter_notes(config: EngineConfig, source: str) -> list[str]:
    """Return a note that an adapter beside the model is applied, as transformers does with peft. Without peft
    transformers would load the model alone and not say so; MissingDependency."""
    if find_file(config, source, ADAPTER) is None:
        return []
    if not is_peft_available():
        raise MissingDependency(
            f"An adapter lies beside {config.model} ({ADAPTER}): `pip install peft` and it is applied, or move that "
            "file away to load the model without it."
        )
    return [f"The adapter that lies beside the model ({ADAPTER}) is applied."]
