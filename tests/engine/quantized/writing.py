"""One tiny Llama on disk in each kind of quantized file, by the libraries' own writers, and its plain load."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from compressed_tensors.compressors import ModelCompressor
from compressed_tensors.quantization import QuantizationConfig, apply_quantization_config
from safetensors.torch import load_file
from torch import Tensor
from torchao.quantization import Int8WeightOnlyConfig
from transformers import (
    AutoModelForCausalLM,
    BitsAndBytesConfig,
    CompressedTensorsConfig,
    FineGrainedFP8Config,
    GgufConfig,
    Mxfp4Config,
    TorchAoConfig,
)

from tests.engine.quantized.files import (
    BLOCK,
    HEADS,
    HIDDEN,
    KV_HEADS,
    LAYERS,
    VOCAB,
    WIDE,
    write_fp8,
    write_mxfp4,
)

Write = Callable[[Path, Path], Path]


def write_gguf(
    plain: Path, to: Path, kind: str = "Q4_0", also: Callable[[gguf.GGUFWriter], object] = lambda to: None
) -> Path:
    """Write as llama.cpp's converter does: its names, and queries and keys in its order of rotary pairs."""
    path = to / f"model.{kind}.gguf"
    to.mkdir(parents=True)
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_block_count(LAYERS)
    writer.add_context_length(128)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(WIDE)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(10000.0)
    writer.add_rope_dimension_count(HIDDEN // HEADS)
    writer.add_vocab_size(VOCAB)
    add_tokens(writer)
    also(writer)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, LAYERS)
    for name, tensor in load_file(plain / "model.safetensors").items():
        values = _paired(name, tensor).numpy()
        of = gguf.GGMLQuantizationType[kind if values.ndim == 2 else "F32"]
        packed = gguf.quants.quantize(np.ascontiguousarray(values), of)
        writer.add_tensor(names.get_name(name, try_suffixes=(".weight",)), packed, raw_dtype=of)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def add_tokens(writer: gguf.GGUFWriter) -> None:
    """Add a byte-level vocabulary as GPT-2's, with two merges."""
    letters = [chr(number) for number in range(33, 33 + VOCAB - 4)]
    tokens = [*letters, "\u0120", "th", "the", "<end>"]
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(tokens)
    writer.add_token_types([*[gguf.TokenType.NORMAL] * (VOCAB - 1), gguf.TokenType.CONTROL])
    writer.add_token_merges(["t h", "th e"])
    writer.add_eos_token_id(VOCAB - 1)


def _paired(name: str, tensor: Tensor) -> Tensor:
    heads = HEADS if "q_proj" in name else KV_HEADS if "k_proj" in name else None
    if heads is None:
        return tensor
    return tensor.reshape(heads, 2, -1, HIDDEN).transpose(1, 2).reshape(tensor.shape)


SCHEMES: dict[str, tuple[dict[str, Any], float]] = {
    "pack-quantized": ({"num_bits": 4, "type": "int", "strategy": "group", "group_size": BLOCK}, 7.5),
    "int-quantized": ({"num_bits": 8, "type": "int", "strategy": "channel"}, 127.5),
    "float-quantized": ({"num_bits": 8, "type": "float", "strategy": "channel"}, 448.0),
}
ACTIVATIONS = {"num_bits": 8, "type": "int", "strategy": "token", "dynamic": True}


def write_compressed(plain: Path, to: Path, form: str = "pack-quantized") -> Path:
    """Write as llm-compressor does: by the compressor of compressed-tensors; int-quantized rounds activations too."""
    scheme, largest = SCHEMES[form]
    group = {"targets": ["Linear"], "weights": scheme, "format": form}
    group |= {"input_activations": ACTIVATIONS} if form == "int-quantized" else {}
    wish = QuantizationConfig(config_groups={"group_0": group}, format=form, ignore=["lm_head"])
    model = AutoModelForCausalLM.from_pretrained(plain, dtype="auto")
    apply_quantization_config(model, wish)
    for module in model.modules():
        if getattr(module, "quantization_scheme", None) is not None:
            groups = module.weight.detach().reshape(len(module.weight), -1, scheme.get("group_size", HIDDEN))
            if scheme["strategy"] == "channel":
                groups = module.weight.detach()[:, None]
            module.weight_scale.data.copy_(groups.abs().amax(-1).reshape(module.weight_scale.shape) / largest)
    compressor = ModelCompressor(quantization_config=wish)
    compressor.compress_model(model)
    model.save_pretrained(to)
    compressor.update_config(str(to))
    return to


def write_loaded(wish: Any) -> Write:
    """Return a writer of the model as a library has rounded it at load."""

    def write(plain: Path, to: Path) -> Path:
        AutoModelForCausalLM.from_pretrained(plain, quantization_config=wish(), dtype="auto").save_pretrained(to)
        return to

    return write


def int8() -> TorchAoConfig:
    return TorchAoConfig(Int8WeightOnlyConfig())


UNPACKED: dict[str, tuple[Write, Callable[[], Any]]] = {
    "gguf": (write_gguf, lambda: GgufConfig(dequantize=True)),
    "compressed-tensors": (write_compressed, lambda: CompressedTensorsConfig(dequantize=True)),
    "fp8": (write_fp8, lambda: FineGrainedFP8Config(dequantize=True)),
}
MXFP4 = {"mxfp4": (write_mxfp4, lambda: Mxfp4Config(dequantize=True))}
PACKED: dict[str, tuple[Write, Callable[[], Any]]] = {
    "torchao": (write_loaded(int8), lambda: None),
    "bitsandbytes, 4 bits": (
        write_loaded(lambda: BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4")),
        lambda: None,
    ),
    "bitsandbytes, 8 bits": (
        write_loaded(lambda: BitsAndBytesConfig(load_in_8bit=True, llm_int8_threshold=0.0)),
        lambda: None,
    ),
}
KINDS = {**UNPACKED, **PACKED}


def plain_load(kind: str, path: Path) -> Any:
    """Load the files in plain transformers, with the arguments that docs/quantized.md names."""
    wish = {**KINDS, **MXFP4}[kind][1]()
    given = {} if wish is None else {"quantization_config": wish}
    if path.suffix == ".gguf":
        return AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype="auto", **given).eval()
    return AutoModelForCausalLM.from_pretrained(path, dtype="auto", **given).eval()
