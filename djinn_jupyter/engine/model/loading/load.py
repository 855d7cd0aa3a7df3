"""Load a model into memory, ready to be probed. Changes no global state of torch.

Weights are read in the dtype they are served in and stay on the host: memory-mapped where the files hold that dtype, in
ordinary memory where they were converted or drawn.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import torch
from transformers import AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from djinn_jupyter.amounts import spell_bytes
from djinn_jupyter.engine.config import EngineConfig
from djinn_jupyter.engine.model.loading.pretrained import attention_wish, read_pretrained
from djinn_jupyter.engine.model.loading.reasons import missing, on_one_line
from djinn_jupyter.engine.model.loading.source import (
    TOKENIZER_FILES,
    auto_classes,
    find_file,
    find_source,
    folder_of,
    has_tokenizer,
    read_configuration,
)
from djinn_jupyter.engine.model.loading.token_bound import growth_fault
from djinn_jupyter.errors import ModelDoesNotFit, ModelRefused, UsageError
from djinn_jupyter.file_stamps import Stamps, first_change, stamps_in
from djinn_jupyter.machine import device_of_environment, main_memory
from djinn_jupyter.model_files import fault_of

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
    read from, where known, `source` the folder or hub name; None for one that was made in memory. `notes` are sentences
    on the parts of the checkpoint that are not served; `files` are as they were when they were read."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase | None
    name: str
    revision: str | None
    dtype: torch.dtype
    device: torch.device
    notes: tuple[str, ...] = ()
    source: str | None = None
    files: Stamps = field(default_factory=dict)


def load_model(config: EngineConfig) -> LoadedModel:
    """Load the model of `config`.

    Raises ModelNotFound, ModelRefused, ModelDoesNotFit, MissingDependency or UsageError, each saying what to do.
    """
    device = choose_devices(config)[0]
    dtype = None if config.dtype is None else parse_dtype(config.dtype)
    source = find_source(config)
    before = stamps_in(Path(source)) if Path(source).is_dir() else {}
    configuration = read_configuration(config, source)
    notes: list[str] = []
    if config.random_weights:
        model = _draw_in_memory(config, source, configuration, dtype)
    else:
        model, notes = read_pretrained(config, source, configuration, dtype)
    tokenizer, unread = load_tokenizer(config, source)
    if (changed := first_change(before)) is not None:
        raise ModelRefused(f"The files of {config.model} changed while they were read ({changed}); load it again.")
    folder = folder_of(config, source)
    return LoadedModel(
        model=model.eval().requires_grad_(False),
        tokenizer=tokenizer,
        source=source,
        files=before or ({} if folder is None else stamps_in(folder)),
        name=config.model,
        revision=getattr(configuration, "_commit_hash", None) or config.revision,
        dtype=model.dtype,
        device=device,
        notes=(*notes, *unread),
    )


def empty_model(config: EngineConfig) -> PreTrainedModel:
    """Return the architecture of `config` on the meta device: shapes without weights, from the configuration alone."""
    dtype = None if config.dtype is None else parse_dtype(config.dtype)
    source = find_source(config)
    with torch.device("meta"):
        return _draw(config, source, read_configuration(config, source), dtype)


def choose_device(name: str | None) -> torch.device:
    """Return `name` as an existing device, a GPU with its index as tensors have it; without a name the one that
    DJINN_DEVICE names, else the GPU if there is one."""
    name = name or device_of_environment() or ("cuda" if torch.cuda.is_available() else "cpu")
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


def choose_devices(config: EngineConfig) -> tuple[torch.device, ...]:
    """Return the devices that the model's layers lie on, in order: those of `devices`, else the one of `device`. Raises
    UsageError where both are given, or two names are one device."""
    if config.devices is None:
        return (choose_device(config.device),)
    if config.device is not None:
        raise UsageError("Give --device for one device or --devices for several, not both.")
    chosen = tuple(choose_device(name.strip()) for name in config.devices.split(","))
    real = {torch.empty(0, device=device).device for device in chosen}
    if len(real) < len(chosen) or len(chosen) < 2:
        raise UsageError(f"--devices {config.devices} names {_counted(real)}; name two different GPUs or more.")
    if len({device.type for device in chosen}) > 1:
        raise UsageError(f"--devices {config.devices} names devices of two kinds; name GPUs alone.")
    return chosen


def _counted(real: set[torch.device]) -> str:
    return f"one device, {next(iter(real))}" if len(real) == 1 else f"{len(real)} devices, one of them twice"


def parse_dtype(name: str) -> torch.dtype:
    if name.removeprefix("torch.") not in DTYPES:
        raise UsageError(f"{name!r} is no dtype to serve a model in; write one of {', '.join(DTYPES)}.")
    return DTYPES[name.removeprefix("torch.")]


def _draw_in_memory(
    config: EngineConfig, source: str, configuration: Any, dtype: torch.dtype | None
) -> PreTrainedModel:
    """Draw the weights if main memory has room; without this check the system would kill the process midway."""
    with torch.device("meta"):
        size = sum(weight.nbytes for weight in _draw(config, source, configuration, dtype).parameters())
    left = main_memory().available
    if size > left:
        raise ModelDoesNotFit(
            f"To draw weights of this architecture takes {spell_bytes(size)} of main memory, and "
            f"{spell_bytes(left)} are available; take a smaller one, or fewer bytes with --dtype."
        )
    return _draw(config, source, configuration, dtype)


def _draw(config: EngineConfig, source: str, configuration: Any, dtype: torch.dtype | None) -> PreTrainedModel:
    """Return the architecture with weights drawn from the seed; torch's own generator is left as it was."""
    dtype = dtype or getattr(configuration, "dtype", None) or torch.float32
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.random_seed)
        try:
            model = auto_classes(configuration)[0].from_config(
                configuration, dtype=dtype, trust_remote_code=config.trust_remote_code, **attention_wish(config)
            )
        except ImportError as error:
            raise missing(config, error) from error
        except Exception as error:  # fields that contradict each other raise anything
            raise ModelRefused(f"{config.model} cannot be built: {on_one_line(error)}.") from error
    return model  # type: ignore[no-any-return]


def load_tokenizer(config: EngineConfig, source: str) -> tuple[PreTrainedTokenizerBase | None, list[str]]:
    """Return the tokenizer and notes. Without a readable one the model is served in token ids, and a note says why."""
    if not has_tokenizer(config, source):
        return None, []
    try:
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
            source, revision=config.revision, trust_remote_code=config.trust_remote_code
        )
    except ImportError as error:
        raise missing(config, error) from error
    except Exception as error:  # noqa: BLE001  # a library reading an arbitrary file raises anything
        why = _why(config, source, error)
        return None, [f"Its tokenizer cannot be read, so prompts are lists of token ids: {why}."]
    fault = growth_fault(tokenizer)
    if fault is not None:
        return None, [f"Its tokenizer is not used, so prompts are lists of token ids: {fault}."]
    return tokenizer, []


def _why(config: EngineConfig, source: str, error: Exception) -> str:
    """Return the fault of a tokenizer: the fault found in its files, or else the library's message."""
    paths = [find_file(config, source, name) for name in TOKENIZER_FILES]
    faults = [fault for path in paths if path is not None and (fault := fault_of(path))]
    return faults[0] if faults else on_one_line(error)
