"""GGUF files: what their heads say, and whether transformers reads all of one. A file is a whole model; nothing that
lies beside it belongs to it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Container, Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, NamedTuple

from djinn_jupyter.engine.system.config import EngineConfig
from djinn_jupyter.errors import ModelRefused
from djinn_jupyter.files import Stamp, stamp_of

_LAYER: Final = re.compile(r"blk\.(\d+)\.")
_SCALED: Final = re.compile(r"'rope_type': '(?!default)")


def is_gguf(source: str) -> bool:
    """True for a GGUF file; a folder may have such a name too."""
    return source.endswith(".gguf") and not Path(source).is_dir()


@contextmanager
def pretrained_arguments(source: str) -> Iterator[dict[str, Any]]:
    """Yield the arguments of transformers' `from_pretrained` that name a source: a folder, a hub name, or a GGUF file.
    The folder of a file may have a tokenizer or an adapter of another model, so an empty one is given in its place."""
    if not is_gguf(source):
        yield {"pretrained_model_name_or_path": source}
        return
    with TemporaryDirectory() as empty:
        yield {"pretrained_model_name_or_path": empty, "gguf_file": str(Path(source).absolute())}


def types_in(path: str) -> str:
    """Return the types of a GGUF file's tensors, the most frequent first."""
    counts = Counter(_header(path, stamp_of(path)).types)
    return f"GGUF ({', '.join(f'{count} {name}' for name, count in counts.most_common())})"


def has_tokens(path: str) -> bool:
    """True for a GGUF file with a tokenizer."""
    return _header(path, stamp_of(path)).has_tokens


def require_all_read(config: EngineConfig, source: str, configuration: Any) -> None:
    """Raise ModelRefused where transformers would pass over a part of a GGUF file without a word, and so compute
    another model: layers beyond the last, and scaled rotary positions, as those of Llama 3.1. So are layers that
    the file lacks: transformers takes half a minute for 179 of them before it says so."""
    held = _header(source, stamp_of(source))
    text = configuration.get_text_config(decoder=True)
    absent = sorted({*range(text.num_hidden_layers)} - {layer for layer, _ in held.layers})
    if absent and held.layers:
        raise ModelRefused(
            f"{config.model} names {text.num_hidden_layers} layers in its header and holds no tensor of "
            f"{len(absent)} of them, such as layer {absent[0]}; copy or download it again."
        )
    beyond = [name for layer, name in held.layers if layer >= text.num_hidden_layers]
    if beyond and held.architecture not in _reported_architectures():
        raise ModelRefused(
            f"{config.model} holds {len(beyond)} tensors beyond the {text.num_hidden_layers} layers that its header "
            f"names, such as {beyond[0]}; computed without them it would be another model."
        )
    if held.scaling is not None and not _SCALED.search(str(getattr(text, "rope_parameters", None))):
        raise ModelRefused(
            f"{config.model} scales its rotary positions ({held.scaling}), and the installed transformers does not "
            "read that from a GGUF file: it would be another model. Load the model that it was made from."
        )


def _reported_architectures() -> Container[str]:
    """Return the architectures of which transformers reports tensors that have no place; older versions have none."""
    try:
        from transformers.integrations.gguf import gguf_conversion_mapping
    except ImportError:
        return ()
    return gguf_conversion_mapping.GGUF_ARCHS


class _Header(NamedTuple):
    types: tuple[str, ...]
    has_tokens: bool
    architecture: str
    layers: tuple[tuple[int, str], ...]  # of each tensor of a layer, with its name
    scaling: str | None  # what scales rotary positions


@lru_cache(maxsize=1)
def _header(path: str, stamp: Stamp) -> _Header:
    """Read the head of a GGUF file; a large vocabulary takes seconds."""
    from gguf import GGUFReader  # few have it

    read = GGUFReader(path)
    types = tuple(tensor.tensor_type.name for tensor in read.tensors)
    architecture = _text(read, "general.architecture")
    scaling = _text(read, f"{architecture}.rope.scaling.type")
    factors = [one.name for one in read.tensors if one.name.startswith("rope_f") and (one.data != 1).any()]
    return _Header(
        types=types,
        has_tokens="tokenizer.ggml.tokens" in read.fields,
        architecture=architecture,
        layers=tuple((int(found[1]), one.name) for one in read.tensors if (found := _LAYER.match(one.name))),
        scaling=scaling if scaling not in ("", "none") else next(iter(factors), None),
    )


def _text(read: Any, name: str) -> str:
    field = read.fields.get(name)
    return "" if field is None else bytes(field.parts[field.data[0]]).decode(errors="replace")
