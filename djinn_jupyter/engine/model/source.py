"""Where a model comes from: the demo in this package, a folder, or a hub name; and its configuration."""

from __future__ import annotations

import os
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from transformers import AutoConfig, AutoModelForCausalLM
from transformers.utils.hub import cached_file

from djinn_jupyter.engine.config import EngineConfig
from djinn_jupyter.engine.model import hub
from djinn_jupyter.errors import MissingDependency, ModelNotFound, ModelRefused

DEMO = Path(__file__).parents[2] / "demo" / "model"
_TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "spiece.model",
    "sentencepiece.bpe.model",
    "vocab.json",
    "vocab.txt",
)


def find_source(config: EngineConfig) -> str:
    """The folder or hub name that `config.model` stands for. ModelNotFound if it can be neither."""
    if config.model == "demo":
        if not (DEMO / "config.json").is_file():
            raise ModelNotFound(
                "This installation lacks the demo model; train it with `make demo` or install the package."
            )
        return str(DEMO)
    folder = Path(config.model).expanduser()
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise ModelNotFound(
                f"The folder {config.model} holds no config.json; give a folder saved by save_pretrained."
            )
        return str(folder)
    if config.model.startswith((".", "/", "~")) or config.model.count("/") > 1 or os.sep == config.model[-1:]:
        raise ModelNotFound(f"There is no folder {config.model}; give a folder, a hub name (owner/model) or demo.")
    if get_close_matches(config.model.lower(), ["demo"], cutoff=0.75):
        raise ModelNotFound(f"There is no model {config.model}; did you mean demo?")
    return config.model


def read_configuration(config: EngineConfig, source: str) -> Any:
    """The configuration of a decoder-only language model, or ModelNotFound, ModelRefused, MissingDependency."""
    if not Path(source).is_dir():
        hub.notice_absence()
    try:
        found = AutoConfig.from_pretrained(source, revision=config.revision, trust_remote_code=config.trust_remote_code)
    except OSError as error:
        raise not_found(config, error) from error
    except ImportError as error:
        raise missing(config, error) from error
    except (KeyError, ValueError) as error:
        raise ModelRefused(_why_unread(config, error)) from error
    if getattr(found, "is_encoder_decoder", False):
        raise ModelRefused(f"{config.model} is an encoder-decoder; only decoder-only language models can be served.")
    remote = "AutoModelForCausalLM" in (getattr(found, "auto_map", None) or {})
    if remote and not config.trust_remote_code and not _in_library(found):
        raise ModelRefused(_needs_code(config))
    if not remote and not _in_library(found):
        raise ModelRefused(
            f"{config.model} is a {found.model_type} model, which is not a causal language model to transformers: "
            "AutoModelForCausalLM does not build it."
        )
    return found


def _in_library(configuration: Any) -> bool:
    return type(configuration) in AutoModelForCausalLM._model_mapping


def _needs_code(config: EngineConfig) -> str:
    return f"{config.model} runs code of its own from the hub; read that code, then load it with --trust-remote-code."


def _why_unread(config: EngineConfig, error: Exception) -> str:
    if "trust_remote_code" in str(error):
        return _needs_code(config)
    if "model_type" in str(error) or "does not recognize" in str(error) or isinstance(error, KeyError):
        return (
            f"The installed transformers does not know the architecture of {config.model}: "
            f"{_first_line(error)} Upgrade transformers."
        )
    return f"The configuration of {config.model} cannot be read: {_first_line(error)}"


def not_found(config: EngineConfig, error: OSError) -> ModelNotFound:
    """What to do when files of a model cannot be had."""
    text = str(error)
    fetch = f"run `hf download {config.model}` on a machine with network and copy the cache, or give a folder"
    if "gated repo" in text or "401" in text or "403" in text:
        return ModelNotFound(
            f"{config.model} is gated or private: run `hf auth login` with an account that has access."
        )
    if "Error no file named" in text or "does not appear to have a file named" in text:
        return ModelNotFound(
            f"{config.model} is there but holds no weights; --random-weights draws them: {_first_line(error)}"
        )
    if "couldn't connect" in text or "offline" in text.lower() or "outgoing traffic" in text:
        return ModelNotFound(f"There is no network and {config.model} is not in the cache: {fetch}.")
    if "not a valid git identifier" in text or ("revision" in text.lower() and config.revision):
        return ModelNotFound(f"{config.model} has no revision {config.revision}: {_first_line(error)}")
    return ModelNotFound(f"{config.model} is neither demo, nor a folder, nor a model on the hub: {_first_line(error)}")


def missing(config: EngineConfig, error: ImportError) -> MissingDependency:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return MissingDependency(f"{config.model} needs a package that is not installed here: {' '.join(lines[:2])}")


def has_tokenizer(config: EngineConfig, source: str) -> bool:
    """Whether tokenizer files lie with the model. (transformers makes up an empty tokenizer where there are none.)"""
    if Path(source).is_dir():
        return any((Path(source) / name).is_file() for name in _TOKENIZER_FILES)
    return any(
        cached_file(
            source,
            name,
            revision=config.revision,
            _raise_exceptions_for_missing_entries=False,
            _raise_exceptions_for_connection_errors=False,
            _raise_exceptions_for_gated_repo=False,
        )
        for name in _TOKENIZER_FILES
    )


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
