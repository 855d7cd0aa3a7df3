"""Brings a model into memory, ready to be studied. Changes no global state of torch.

Weights are read in the dtype they are served in and stay on the host: mapped from their files where these hold them as
they are served, in memory where they were converted or drawn.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from djinn_jupyter.engine.config import EngineConfig
from djinn_jupyter.engine.model.source import find_source, has_tokenizer, missing, not_found, read_configuration
from djinn_jupyter.errors import ModelDoesNotFit, ModelRefused, UsageError
from djinn_jupyter.machine import main_memory

DTYPES: Final = {
    "float32": torch.float32,
    "fp32": torch.float32,
    "bfloat16": torch.bfloat16,
    "bf16": torch.bfloat16,
    "float16": torch.float16,
    "fp16": torch.float16,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    """A model on the host, in eval mode without gradients, and the device it is for. `revision` is the commit it was
    read from, where that is known."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase | None
    name: str
    revision: str | None
    dtype: torch.dtype
    device: torch.device


def load_model(config: EngineConfig) -> LoadedModel:
    """The model of `config`.

    Raises ModelNotFound, ModelRefused, ModelDoesNotFit, MissingDependency or UsageError, each saying what to do.
    """
    device = choose_device(config.device)
    dtype = None if config.dtype is None else parse_dtype(config.dtype)
    source = find_source(config)
    configuration = read_configuration(config, source)
    build = _draw_in_memory if config.random_weights else _read
    model = build(config, source, configuration, dtype)
    return LoadedModel(
        model=model.eval().requires_grad_(False),
        tokenizer=_tokenizer(config, source),
        name=config.model,
        revision=getattr(configuration, "_commit_hash", None) or config.revision,
        dtype=model.dtype,
        device=device,
    )


def empty_model(config: EngineConfig) -> PreTrainedModel:
    """The architecture of `config` on the meta device: shapes without weights, from the configuration alone."""
    dtype = None if config.dtype is None else parse_dtype(config.dtype)
    source = find_source(config)
    with torch.device("meta"):
        return _draw(config, source, read_configuration(config, source), dtype)


def choose_device(name: str | None) -> torch.device:
    """`name` as a device that is there, a GPU with its index as tensors have it; without a name the GPU if there is
    one."""
    name = name or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise UsageError(f"{name!r} is no device; write cpu, cuda or cuda:1.") from error
    if device.type != "cuda":
        return device
    index = device.index or 0
    if index >= torch.cuda.device_count():
        raise UsageError(
            f"There is no device {name}: this machine has {torch.cuda.device_count()} GPUs that torch can use."
        )
    return torch.device("cuda", index)


def parse_dtype(name: str) -> torch.dtype:
    if name.removeprefix("torch.") not in DTYPES:
        raise UsageError(f"{name!r} is no dtype to serve a model in; write one of {', '.join(DTYPES)}.")
    return DTYPES[name.removeprefix("torch.")]


def _read(config: EngineConfig, source: str, configuration: Any, dtype: torch.dtype | None) -> PreTrainedModel:
    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            source,
            config=configuration,
            revision=config.revision,
            dtype=dtype or "auto",
            trust_remote_code=config.trust_remote_code,
            output_loading_info=True,
            **_attention(config),
        )
    except OSError as error:
        raise not_found(config, error) from error
    except ImportError as error:
        raise missing(config, error) from error
    except ValueError as error:
        raise ModelRefused(f"{config.model} cannot be loaded: {str(error).splitlines()[0]}") from error
    model: PreTrainedModel
    model, report = loaded
    absent = sorted(report["missing_keys"]) or sorted(str(key) for key in report["mismatched_keys"])
    if absent:
        raise ModelRefused(
            f"The checkpoint of {config.model} lacks {len(absent)} of the weights of {type(model).__name__}, "
            f"such as {absent[0]}; nothing is drawn in their place."
        )
    return model


def _draw_in_memory(
    config: EngineConfig, source: str, configuration: Any, dtype: torch.dtype | None
) -> PreTrainedModel:
    """Where there is room for it: the system would let it begin, and kill the process on the way."""
    with torch.device("meta"):
        size = sum(weight.nbytes for weight in _draw(config, source, configuration, dtype).parameters())
    left = main_memory().available
    if size > left:
        raise ModelDoesNotFit(
            f"To draw weights of this architecture takes {size / 2**30:.2f} GiB of main memory, and "
            f"{left / 2**30:.2f} GiB are available; take a smaller one, or fewer bytes with --dtype."
        )
    return _draw(config, source, configuration, dtype)


def _draw(config: EngineConfig, source: str, configuration: Any, dtype: torch.dtype | None) -> PreTrainedModel:
    """The architecture with weights drawn from the seed; torch's own generator is left as it was."""
    dtype = dtype or getattr(configuration, "dtype", None) or torch.float32
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.random_seed)
        try:
            model = AutoModelForCausalLM.from_config(
                configuration, dtype=dtype, trust_remote_code=config.trust_remote_code, **_attention(config)
            )
        except ImportError as error:
            raise missing(config, error) from error
        except ValueError as error:
            raise ModelRefused(f"{config.model} cannot be built: {str(error).splitlines()[0]}") from error
    return model  # type: ignore[no-any-return]


def _attention(config: EngineConfig) -> dict[str, str]:
    """Without a wish the library takes sdpa where the family has it, else eager."""
    return {} if config.attention is None else {"attn_implementation": config.attention}


def _tokenizer(config: EngineConfig, source: str) -> PreTrainedTokenizerBase | None:
    if not has_tokenizer(config, source):
        return None
    try:
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
            source, revision=config.revision, trust_remote_code=config.trust_remote_code
        )
    except ImportError as error:
        raise missing(config, error) from error
    except (OSError, ValueError) as error:
        raise ModelRefused(f"The tokenizer of {config.model} cannot be read: {str(error).splitlines()[0]}") from error
    return tokenizer
