"""Quantized weights: which library reads them, what it makes of them, and which checkpoints cannot be exact.

A checkpoint whose weights can be unpacked is unpacked at load, whatever is installed, and is then a model like any
other. Weights that a library computes with as they are stay *packed*.
"""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final, NamedTuple

import torch
import transformers
from transformers import PreTrainedModel

from djinn_jupyter.engine.model.loading import gguf_file
from djinn_jupyter.engine.system.config import EngineConfig
from djinn_jupyter.errors import MissingDependency, ModelRefused, UsageError


class _Unpacking(NamedTuple):
    """The configuration of transformers that takes `dequantize`, and the only dtype to which it unpacks, if any."""

    configuration: str
    needs: tuple[str, ...]
    dtype: torch.dtype | None = None


_UNPACKED: Final = {
    "gguf": _Unpacking("GgufConfig", ("gguf", "accelerate")),
    "compressed-tensors": _Unpacking("CompressedTensorsConfig", ("compressed-tensors",)),
    "fp8": _Unpacking("FineGrainedFP8Config", ("accelerate",), torch.bfloat16),
    "mxfp8": _Unpacking("FineGrainedFP8Config", ("accelerate",), torch.bfloat16),
    "mxfp4": _Unpacking("Mxfp4Config", ("accelerate",), torch.bfloat16),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantization:
    """The way in which a model's weights are quantized, in `words`. `packed`: a library may compute with them as they
    are, packed. `arguments` are those of `from_pretrained`; `dtype` is the only one that transformers unpacks to."""

    words: str
    packed: bool
    arguments: dict[str, Any]
    dtype: torch.dtype | None = None

    def words_of(self, model: PreTrainedModel) -> str:
        """Return the words for a loaded model, with its dtype. ModelRefused where modules go on quantizing, as those of
        compressed-tensors do in transformers 5.15, which then round activations."""
        if not self.packed and any(getattr(one, "quantization_scheme", None) is not None for one in model.modules()):
            raise ModelRefused(f"The installed transformers does not unpack {self.words} altogether: upgrade it.")
        dtype = str(model.dtype).removeprefix("torch.")
        return f"{self.words} in {dtype}" if self.packed else f"{self.words} unpacked to {dtype}"


def quantization_of(config: EngineConfig, source: str, configuration: Any) -> Quantization | None:
    """Return how the weights of a model are read; None for plain ones. Raises MissingDependency where a library is not
    installed, ModelRefused for a quantization that cannot be exact, UsageError for an impossible `quantize`."""
    method, fields = ("gguf", {}) if gguf_file.is_gguf(source) else method_of(configuration)
    if config.quantize is not None:
        _require_plain(config, method)
        return _rounded(config)
    if method is None or config.random_weights:
        return None
    if method == "bitsandbytes":
        return _by_bitsandbytes(config, fields)
    if method == "torchao":
        _require(config, "torchao")
        kind = re.search(r"'_type': '(\w+Config)'", str(fields.get("quant_type")))
        words = f"{kind[1] if kind else 'rounded'} by {_named('torchao')}"
        return Quantization(words=words, packed=True, arguments={})
    if method not in _UNPACKED:  # transformers' own way, on this device
        words = f"{method} as transformers {transformers.__version__} has it"
        return Quantization(words=words, packed=True, arguments={})
    if method == "gguf":
        gguf_file.require_all_read(config, source, configuration)
    return _unpacked(config, method, fields, source)


def method_of(configuration: Any) -> tuple[str | None, dict[str, Any]]:
    """Return the method of a configuration's quantization that the installed transformers knows, None without one, and
    its fields."""
    said = getattr(configuration, "quantization_config", None) or getattr(
        configuration.get_text_config(decoder=True), "quantization_config", None
    )
    fields = said if isinstance(said, dict) else {} if said is None else said.to_dict()
    method = fields.get("quant_method")
    if fields.get("load_in_8bit") or fields.get("load_in_4bit"):
        method = "bitsandbytes"
    known = transformers.quantizers.auto.AUTO_QUANTIZATION_CONFIG_MAPPING
    named = str(getattr(method, "value", method))
    return (named if named == "bitsandbytes" or named in known else None), fields


def _rounded(config: EngineConfig) -> Quantization:
    """Return the quantization of `--quantize`, by torchao at load."""
    _require(config, "torchao")
    from torchao.quantization import Int8WeightOnlyConfig  # where it is asked for: it imports for a second

    arguments = {"quantization_config": transformers.TorchAoConfig(Int8WeightOnlyConfig())}
    return Quantization(words=f"Int8WeightOnlyConfig by {_named('torchao')}", packed=True, arguments=arguments)


def _word(said: object) -> str:
    """Return a name in a configuration, which may hold anything, as one short word."""
    return re.sub(r"[^\w.-]", "", str(said))[:40]


def _require_plain(config: EngineConfig, method: str | None) -> None:
    if method is not None:
        raise UsageError(f"{config.model} is quantized already ({method}): leave --quantize out.")
    if config.random_weights:
        raise UsageError("--quantize rounds weights that are read, and --random-weights draws them: leave one out.")


def _by_bitsandbytes(config: EngineConfig, fields: dict[str, Any]) -> Quantization:
    """Return the quantization of a checkpoint of bitsandbytes. With a threshold, 8 bits are refused: the columns that
    stay in float are those with a large number at any position, so a position depends on later ones."""
    _require(config, "bitsandbytes", "accelerate")
    in_four, named = bool(fields.get("load_in_4bit")), _named("bitsandbytes")
    if not in_four and fields.get("llm_int8_threshold", 6.0) != 0:
        raise ModelRefused(
            f"{config.model} is in 8 bits by bitsandbytes, which chooses the columns that it rounds by all tokens of a "
            "pass (llm_int8_threshold), so a stopped pass cannot go on exactly. Load the model that it was made from "
            "with --quantize int8, in Python quantize='int8', or save it with llm_int8_threshold=0."
        )
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)  # it warns at every product of 8 bits
    kind = f"{_word(fields.get('bnb_4bit_quant_type', 'fp4'))} in 4 bits" if in_four else "8 bits"
    kernel = f" with the kernels of kernels {_version('kernels')}" if in_four and _version("kernels") else ""
    return Quantization(words=f"{kind} by {named}{kernel}", packed=True, arguments={})


def _unpacked(config: EngineConfig, method: str, fields: dict[str, Any], source: str) -> Quantization:
    unpacking = _UNPACKED[method]
    _require(config, *unpacking.needs)
    if unpacking.dtype is not None and config.dtype not in (None, "bfloat16", "bf16"):
        raise UsageError(f"transformers unpacks {method} to bfloat16 alone: leave --dtype {config.dtype} out.")
    words = f"{method} ({_word(fields['format'])})" if "format" in fields else method
    words = gguf_file.types_in(source) if method == "gguf" else words
    made = getattr(transformers, unpacking.configuration, None)  # GgufConfig is new; before it all GGUF was unpacked
    wish = {} if made is None else {"quantization_config": made(dequantize=True)}
    return Quantization(words=words, packed=False, arguments=wish, dtype=unpacking.dtype)


def require_gguf(config: EngineConfig) -> None:
    """Raise MissingDependency unless GGUF files can be read here."""
    _require(config, *_UNPACKED["gguf"].needs)


def _require(config: EngineConfig, *packages: str) -> None:
    absent = [name for name in packages if _version(name) is None]
    if absent:
        raise MissingDependency(
            f"{config.model} needs {' and '.join(absent)}, not installed here: pip install 'djinn-jupyter[quantized]'."
        )


def why_no_gradients(model: PreTrainedModel) -> str | None:
    """Return why no gradient goes through a model's packed layers; None where nothing speaks against it. On some
    CPUs bitsandbytes has a kernel for 4 bits that autograd passes over: gradients would lack its part, unnoticed."""
    in_four = any(getattr(one, "quant_state", None) is not None for one in model.parameters())
    return "on the CPU bitsandbytes computes 4 bits without them" if in_four and model.device.type == "cpu" else None


def _named(package: str) -> str:
    return f"{package} {_version(package)}"


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
