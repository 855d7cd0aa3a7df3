"""The source of a model (the demo in this package, a folder, or a hub name), its configuration, and the transformers
class that builds it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForMultimodalLM,
    AutoModelForSeq2SeqLM,
    PreTrainedConfig,
)
from transformers.utils.hub import cached_file

from djinn_jupyter.engine.model.loading import hub
from djinn_jupyter.engine.model.loading.gguf_file import has_tokens, is_gguf, pretrained_arguments
from djinn_jupyter.engine.model.loading.other_parts import sections
from djinn_jupyter.engine.model.loading.quantized import require_gguf
from djinn_jupyter.engine.model.loading.reasons import (
    missing,
    needs_code,
    not_found,
    unknown_configuration,
    unreadable_gguf,
)
from djinn_jupyter.engine.system.config import EngineConfig
from djinn_jupyter.errors import ModelNotFound, ModelRefused
from djinn_jupyter.model_files import folder_called
from djinn_jupyter.modules.files.files import short

MOST: Final = (
    (re.compile(r"(num|n|encoder|decoder)(_\w+)?_layers?|n_layer|depth"), 1000, "layers"),
    (re.compile(r"(num|n)(_\w+)?_experts"), 100_000, "experts"),
)  # transformers makes an object of each layer before a weight is read: 15 ms on one core of an EPYC
OUTPUTS: Final = ("output_attentions", "output_hidden_states", "output_router_logits")
DEMO = Path(__file__).parents[3] / "demo" / "model"
# The third is for encoder-decoders, which are refused by name, and for a few decoders with sound.
AUTO_CLASSES: Final = (AutoModelForCausalLM, AutoModelForMultimodalLM, AutoModelForSeq2SeqLM)
TOKENIZER_FILES: Final = (
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "spiece.model",
    "sentencepiece.bpe.model",
    "vocab.json",
    "vocab.txt",
)


def find_source(config: EngineConfig) -> str:
    """Return the folder, GGUF file or hub name that `config.model` stands for. ModelNotFound if it is none of them."""
    if config.model == "demo":
        if not (DEMO / "config.json").is_file():
            raise ModelNotFound(
                "This installation lacks the demo model; install the package again, or train it from a checkout "
                "with python -m demo_training.train."
            )
        return str(DEMO)
    folder = folder_called(config.model)
    return config.model if folder is None else str(folder)


def read_configuration(config: EngineConfig, source: str) -> Any:
    """Return the configuration of a decoder-only language model, or of the language part of a composite model. Raises
    ModelNotFound, ModelRefused, MissingDependency."""
    if is_gguf(source):
        require_gguf(config)
    elif not Path(source).is_dir():
        hub.notice_absence()
    _require_buildable(config, source)
    try:
        with pretrained_arguments(source) as named:
            found = AutoConfig.from_pretrained(
                **named, revision=config.revision, trust_remote_code=config.trust_remote_code
            )
    except ImportError as error:
        raise missing(config, error) from error
    except Exception as error:  # every family checks its fields in its own way
        if is_gguf(source):
            raise unreadable_gguf(config, error) from error
        if isinstance(error, OSError):
            raise not_found(config, error) from error
        raise unknown_configuration(config, error) from error
    if is_gguf(source):
        _require_counts(f"The header of {config.model}", found.to_dict())
    if getattr(found, "is_encoder_decoder", False):
        raise ModelRefused(f"{config.model} is an encoder-decoder; only decoder-only language models can be served.")
    known = any(_builds(auto, found) for auto in auto_classes(found))
    if runs_own_code(found) and not config.trust_remote_code and not known:
        raise needs_code(config)
    if not auto_classes(found):
        raise ModelRefused(
            f"{config.model} is a {found.model_type} model, which is not a causal language model to transformers: "
            f"none of {', '.join(auto.__name__ for auto in AUTO_CLASSES)} builds it."
        )
    return _returning_logits(_part_of_text(found))


def _require_buildable(config: EngineConfig, source: str) -> None:
    """Raise ModelRefused for impossible numbers of layers or experts in config.json."""
    try:
        path = find_file(config, source, "config.json")
        said = None if path is None else json.loads(path.read_bytes())
        _require_counts(f"The config.json of {config.model}", said)
    except (OSError, ValueError, RecursionError):
        return  # transformers says what is wrong with the file


def _require_counts(where: str, said: Any) -> None:
    for name, count in _counts(said):
        for names, most, what in MOST:
            if names.fullmatch(name) and count > most:
                raise ModelRefused(f"{where} has {name} {short(count)}; models of at most {most:,} {what} are loaded.")


def _counts(said: Any) -> Iterator[tuple[str, int]]:
    """Yield the whole numbers of a configuration and its sections by name."""
    for name, value in said.items() if isinstance(said, dict) else ():
        if type(value) is int:
            yield name, value
        yield from _counts(value)


def _part_of_text(configuration: Any) -> Any:
    """Return the section that a class of its own builds around the text model, such as the thinker beside a talker in
    Qwen's Omni models; without one the configuration itself. transformers reads such a part from the whole's files."""
    text = configuration.get_text_config(decoder=True)
    for section in sections(configuration):
        if section is text or section.get_text_config(decoder=True) is not text:
            continue
        if auto_classes(section):
            section.update({"_commit_hash": getattr(configuration, "_commit_hash", None)})
            return section
    return configuration


def _returning_logits(configuration: Any) -> Any:
    """Return the configuration with outputs in the form of `generate`: named, and without values of single layers. Some
    were saved with a training's outputs, such as routers' logits for a loss."""
    asked = {name: False for name in OUTPUTS if getattr(configuration, name, None)}
    configuration.update({**asked, "return_dict": True})
    for section in sections(configuration):
        if isinstance(section, PreTrainedConfig):
            _returning_logits(section)
    return configuration


def runs_own_code(configuration: Any) -> bool:
    return AutoModelForCausalLM.__name__ in (getattr(configuration, "auto_map", None) or {})


def auto_classes(configuration: Any) -> tuple[Any, ...]:
    """Return the auto classes of transformers that build a configuration: as a plain language model where possible, and
    as one with images or sound, whose language part is served."""
    known = [auto for auto in AUTO_CLASSES if _builds(auto, configuration)]
    if not known and runs_own_code(configuration):
        return (AutoModelForCausalLM,)
    return tuple(known)


def _builds(auto: Any, configuration: Any) -> bool:
    return type(configuration) in auto._model_mapping


def has_tokenizer(config: EngineConfig, source: str) -> bool:
    """True where tokenizer files lie with the model, or in its GGUF file. (transformers makes up an empty tokenizer if
    there are none.)"""
    if is_gguf(source):
        return has_tokens(source)
    return any(find_file(config, source, name) is not None for name in TOKENIZER_FILES)


def find_file(config: EngineConfig, source: str, name: str) -> Path | None:
    """Return the path of a file that lies with the model; for a hub model, in the cache. Beside a GGUF file lies none:
    that is the whole model."""
    if is_gguf(source):
        return None
    if Path(source).is_dir():
        path = Path(source) / name
        return path if path.is_file() else None
    found = cached_file(
        source,
        name,
        revision=config.revision,
        _raise_exceptions_for_missing_entries=False,
        _raise_exceptions_for_connection_errors=False,
        _raise_exceptions_for_gated_repo=False,
    )
    return None if found is None else Path(found)


def folder_of(config: EngineConfig, source: str) -> Path | None:
    """Return the folder of the model's files; for a hub model, in the cache."""
    beside = find_file(config, source, "config.json")
    return None if beside is None else beside.parent
