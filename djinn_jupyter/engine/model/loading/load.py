"""Load a model into memory, ready to be probed. Changes no global state of torch.

Weights are read in the dtype they are served in and stay on the host: memory-mapped where the files hold that dtype, in
ordinary memory where they were converted or drawn.
"""

from __future__ import annotations

import inspect
from bisect import bisect_left
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn
from transformers import AutoTokenizer, GenerationMixin, PreTrainedModel, PreTrainedTokenizerBase

from djinn_jupyter.engine.memory.weights import host_weights
from djinn_jupyter.engine.model.loading import source as sources
from djinn_jupyter.engine.model.loading.gguf_file import pretrained_arguments
from djinn_jupyter.engine.model.loading.pretrained import attention_wish, read_pretrained
from djinn_jupyter.engine.model.loading.quantized import quantization_of
from djinn_jupyter.engine.model.loading.reasons import missing, on_one_line
from djinn_jupyter.engine.model.loading.tokenizer import growth_fault
from djinn_jupyter.engine.system.config import EngineConfig
from djinn_jupyter.errors import ModelDoesNotFit, ModelRefused, UsageError
from djinn_jupyter.files import Stamps, first_change, stamp_of, stamps_in
from djinn_jupyter.machine import MPS_REFUSED, device_of_environment, main_memory
from djinn_jupyter.model_files import fault_of
from djinn_jupyter.units import spell_bytes

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
    on the parts of the checkpoint that are not served; `files` are as they were when they were read. `quantization`
    says what was done to the weights, None for plain ones; `packed`: linear maps compute from packed weights."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase | None
    name: str
    revision: str | None
    dtype: torch.dtype
    device: torch.device
    notes: tuple[str, ...] = ()
    source: str | None = None
    files: Stamps = field(default_factory=dict)
    quantization: str | None = None
    packed: bool = False


def load_model(config: EngineConfig) -> LoadedModel:
    """Load the model of `config`.

    Raises ModelNotFound, ModelRefused, ModelDoesNotFit, MissingDependency or UsageError, each saying what to do.
    """
    device = choose_devices(config)[0]
    dtype = None if config.dtype is None else parse_dtype(config.dtype)
    source = sources.find_source(config)
    path = Path(source)
    before = stamps_in(path) if path.is_dir() else {source: stamp_of(source)} if path.is_file() else {}
    configuration = sources.read_configuration(config, source)
    quantization = quantization_of(config, source, configuration)
    dtype = dtype if quantization is None else quantization.dtype or dtype
    notes: list[str] = []
    if config.random_weights:
        model = _draw_in_memory(config, source, configuration, dtype)
    else:
        arguments = {} if quantization is None else quantization.arguments
        model, notes = read_pretrained(config, source, configuration, dtype, arguments)
    packed = quantization is not None and any(map(host_weights.is_packed, model.parameters()))
    quantized = None if quantization is None else quantization.words_of(model)
    tokenizer, unread = load_tokenizer(config, source)
    if (changed := first_change(before)) is not None:
        raise ModelRefused(f"The files of {config.model} changed while they were read ({changed}); load it again.")
    folder = sources.folder_of(config, source)
    return LoadedModel(
        model=model.eval().requires_grad_(False),
        tokenizer=tokenizer,
        source=source,
        files=before or ({} if folder is None else stamps_in(folder)),
        name=config.model,
        revision=getattr(configuration, "_commit_hash", None) or config.revision,
        dtype=model.dtype,
        device=device,
        notes=(*([] if quantized is None else [f"Its weights are quantized: {quantized}."]), *notes, *unread),
        quantization=quantized,
        packed=packed,
    )


def empty_model(config: EngineConfig) -> PreTrainedModel:
    """Return the architecture of `config` on the meta device: shapes without weights, from the configuration alone."""
    dtype = None if config.dtype is None else parse_dtype(config.dtype)
    source = sources.find_source(config)
    with torch.device("meta"):
        return _draw(config, source, sources.read_configuration(config, source), dtype)


def may_pack(config: EngineConfig) -> bool:
    """True where a load of `config` may keep its weights packed, in fewer bytes than its configuration says."""
    source = sources.find_source(config)
    quantization = quantization_of(config, source, sources.read_configuration(config, source))
    return quantization is not None and quantization.packed


def choose_device(name: str | None) -> torch.device:
    """Return `name` as an existing device, a GPU with its index as in tensors; by default the device of DJINN_DEVICE,
    else the GPU if there is one."""
    name = name or device_of_environment() or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise UsageError(f"{name!r} is no device; write cpu, cuda or cuda:1.") from error
    if device.type == "mps":
        raise UsageError(MPS_REFUSED)
    if device.type == "cpu":
        return device
    if device.type != "cuda":  # torch names twenty more, some of which compute nothing
        raise UsageError(f"{name} is no device of an engine; write cpu, cuda or cuda:1.")
    index = device.index or 0
    if index >= torch.cuda.device_count():
        raise UsageError(
            f"There is no device {name}: this machine has {torch.cuda.device_count()} GPUs that torch can use."
        )
    return torch.device("cuda", index)


def choose_devices(config: EngineConfig) -> tuple[torch.device, ...]:
    """Return the devices of the model's layers, in order: those of `devices`, else the one of `device`. Raises
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
    """Return the architecture with weights drawn from the seed; torch's own generator is unchanged."""
    dtype = dtype or getattr(configuration, "dtype", None) or torch.float32
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.random_seed)
        try:
            model = sources.auto_classes(configuration)[0].from_config(
                configuration, dtype=dtype, trust_remote_code=config.trust_remote_code, **attention_wish(config)
            )
        except ImportError as error:
            raise missing(config, error) from error
        except Exception as error:  # fields that contradict each other raise anything
            raise ModelRefused(f"{config.model} cannot be built: {on_one_line(error)}.") from error
    return model  # type: ignore[no-any-return]


def load_tokenizer(config: EngineConfig, source: str) -> tuple[PreTrainedTokenizerBase | None, list[str]]:
    """Return the tokenizer and notes. Without a readable one the model is served in token ids, and a note says why."""
    if not sources.has_tokenizer(config, source):
        return None, []
    try:
        with pretrained_arguments(source) as named:
            tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
                **named, revision=config.revision, trust_remote_code=config.trust_remote_code
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
    paths = [sources.find_file(config, source, name) for name in sources.TOKENIZER_FILES]
    faults = [fault for path in paths if path is not None and (fault := fault_of(path))]
    return faults[0] if faults else on_one_line(error)


def takes_positions(model: Any) -> bool:
    """True where `generate` passes the positions to the model's forward. Some families drop them, because their own
    begin at another number."""
    if "position_ids" not in inspect.signature(model.forward).parameters:
        return False
    tokens = torch.ones((1, 2), dtype=torch.long, device=model.device)
    try:
        given = model.prepare_inputs_for_generation(
            tokens,
            attention_mask=torch.ones_like(tokens),
            position_ids=torch.arange(2, device=model.device)[None],
            use_cache=True,
            is_first_iteration=True,
        )
    except (AttributeError, LookupError, RuntimeError, TypeError, ValueError):
        return True  # the method needs more than a text's inputs
    return given.get("position_ids") is not None


# Rotary frequencies that a forward pass changes for all sessions (`rope_type="dynamic"`), restored before each entry. A
# lone run only grows, so its frequencies are a function of the present length: starting each entry from the load- time
# values gives every session the bits it would have alone. Where they change once at a fixed length
# (`rope_type="longrope"`), a sequence that crosses it would read keys of both kinds. Source: transformers,
# `modeling_rope_utils.dynamic_rope_update`, `Phi3ForCausalLM.prepare_inputs_for_generation`.

ORIGINAL: Final = "original_max_position_embeddings"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Saved:
    module: nn.Module
    buffers: dict[str, Tensor]
    attributes: dict[str, Any]


def _kinds(module: nn.Module) -> list[object]:
    kinds = getattr(module, "rope_type", None)
    return list(kinds.values()) if isinstance(kinds, dict) else [kinds]


def _is_dynamic(module: nn.Module) -> bool:
    return any(isinstance(kind, str) and "dynamic" in kind for kind in _kinds(module))


class Frequencies:
    """Called with a sequence's length; returns the key of its rotary frequencies. Sequences of one pass have the same,
    because the longest decides. For most models all lengths share one key."""

    def __init__(self, model: PreTrainedModel) -> None:
        dynamic = [module for module in model.modules() if _is_dynamic(module)]
        self._switches = sorted({length for module in model.modules() for length in _switches(module)})
        self._stretch_beyond = min((_trained_on(module) for module in dynamic), default=None)

    def __call__(self, length: int) -> tuple[int, int]:
        stretched = self._stretch_beyond is not None and length > self._stretch_beyond
        return bisect_left(self._switches, length), length if stretched else 0


def _switches(module: Any) -> list[int]:
    """Return the lengths beyond which a module uses its other frequencies."""
    kinds = getattr(module, "rope_type", None)
    if not isinstance(kinds, dict):
        return [module.config.rope_parameters[ORIGINAL]] if kinds == "longrope" else []
    of_each = module.config.rope_parameters
    return [of_each[layers][ORIGINAL] for layers, kind in kinds.items() if kind == "longrope"]


def _trained_on(module: Any) -> int:
    """Return the length beyond which a dynamic rotary module stretches its frequencies, a little for each position."""
    length: int = module.original_max_seq_len
    return length


def switches_at(model: PreTrainedModel) -> int | None:
    """Return the length beyond which `generate` recomputes a sequence from its first token with other frequencies."""
    own = getattr(type(model), "prepare_inputs_for_generation", None)
    if own in (None, GenerationMixin.prepare_inputs_for_generation):
        return None
    if not any(getattr(module, "rope_type", None) == "longrope" for module in model.modules()):
        return None
    found = getattr(model.config, ORIGINAL, None)
    return found if isinstance(found, int) else None


class RotaryBuffers:
    """The load-time state of every module with dynamic rotary frequencies; empty for most models."""

    def __init__(self, model: nn.Module) -> None:
        self._saved = tuple(_save(module) for module in model.modules() if _is_dynamic(module))

    def reset(self) -> None:
        for saved in self._saved:
            for name, buffer in saved.buffers.items():
                saved.module.register_buffer(name, buffer.clone(), persistent=False)
            for name, value in saved.attributes.items():
                setattr(saved.module, name, value)


def _save(module: nn.Module) -> _Saved:
    buffers = {name: buffer.clone() for name, buffer in module.named_buffers(recurse=False)}
    changing = [name for name in vars(module) if name.endswith(("max_seq_len_cached", "attention_scaling"))]
    return _Saved(module=module, buffers=buffers, attributes={name: getattr(module, name) for name in changing})
