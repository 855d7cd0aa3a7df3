"""Read a model from its files, whole or not at all, and name the parts of them that are not served."""

from __future__ import annotations

from typing import Any

import torch
from transformers import PreTrainedModel
from transformers.quantizers.auto import AUTO_QUANTIZATION_CONFIG_MAPPING
from transformers.utils.import_utils import is_peft_available

from djinn_jupyter.engine.config import EngineConfig
from djinn_jupyter.engine.model.loading.leftovers import Leftovers
from djinn_jupyter.engine.model.loading.reasons import unloadable
from djinn_jupyter.engine.model.loading.source import auto_classes, find_file, folder_of
from djinn_jupyter.errors import MissingDependency, ModelRefused
from djinn_jupyter.model_files import ADAPTER, weight_names


def read_pretrained(
    config: EngineConfig, source: str, configuration: Any, dtype: torch.dtype | None
) -> tuple[PreTrainedModel, list[str]]:
    """Return the model as it was saved, and sentences on its parts that are not served. ModelNotFound, ModelRefused,
    MissingDependency."""
    notes = _adapter_notes(config, source)
    model, report = _whole(config, source, configuration, dtype)
    return model, notes + _left_out(config, source, configuration, model, report["unexpected_keys"])


def _whole(
    config: EngineConfig, source: str, configuration: Any, dtype: torch.dtype | None
) -> tuple[PreTrainedModel, Any]:
    """Return the model with all its weights, from the first class that finds all its weights in the checkpoint: a model
    saved with its tower may name them otherwise than the language model alone. ModelRefused says what the first class
    lacks."""
    refused: list[ModelRefused] = []
    for auto in auto_classes(configuration):
        try:
            model, report = _from_pretrained(auto, config, source, configuration, dtype)
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
    auto: Any, config: EngineConfig, source: str, configuration: Any, dtype: torch.dtype | None
) -> Any:
    return auto.from_pretrained(
        source,
        config=configuration,
        revision=config.revision,
        dtype=dtype or "auto",
        trust_remote_code=config.trust_remote_code,
        output_loading_info=True,
        ignore_mismatched_sizes=True,  # `_whole` refuses them by name, with their sizes
        **attention_wish(config),
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
    """Return a sentence on the parts of the checkpoint that are not served. ModelRefused where the language part would
    have used one."""
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
    """Return the attention asked for. Without a wish the library takes sdpa where the family has it, else eager."""
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
