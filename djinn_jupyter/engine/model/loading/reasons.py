"""The reason why a model cannot be loaded, in one sentence with the remedy; knows the messages of transformers and the
hub, and reads only the files of weights and the names in the hub's cache."""

from __future__ import annotations

from pathlib import Path

from djinn_jupyter.engine.model.loading import hub
from djinn_jupyter.engine.system.config import EngineConfig
from djinn_jupyter.errors import DjinnError, MissingDependency, ModelDoesNotFit, ModelNotFound, ModelRefused
from djinn_jupyter.model_files import fault_in, weight_files

_OWN_CODE = "read that code, then allow it with --trust-remote-code, in Python trust_remote_code=True"
_ATTENTION = "load it with --attention sdpa, in Python attention='sdpa', to do without"
_RANDOM = "--random-weights, in Python random_weights=True, draws them"


def needs_code(config: EngineConfig) -> ModelRefused:
    return ModelRefused(f"{config.model} runs code of its own from the hub; {_OWN_CODE}.")


def unknown_configuration(config: EngineConfig, error: Exception) -> ModelRefused:
    """Return the error for a config.json that transformers cannot interpret."""
    if "trust_remote_code" in str(error):
        return needs_code(config)
    if "Should have a `model_type` key" in str(error):
        return ModelRefused(
            f"The config.json of {config.model} names no model_type, so nothing says which architecture it is."
        )
    if "model_type" in str(error) or "does not recognize" in str(error) or isinstance(error, KeyError):
        return ModelRefused(
            f"The installed transformers does not know the architecture of {config.model}: "
            f"{first_line(error)} Upgrade transformers."
        )
    return ModelRefused(f"The configuration of {config.model} cannot be read: {on_one_line(error)}.")


def unreadable_gguf(config: EngineConfig, error: Exception) -> ModelRefused:
    """Return the error for a GGUF file whose head cannot be read. transformers takes a text that it cannot decode for
    JSON, so the reason is the error before its own."""
    before = error.__context__ if isinstance(error, OSError) else None
    why = on_one_line(before if isinstance(before, Exception) else error)
    return ModelRefused(
        f"{config.model} cannot be read: it is cut off or damaged, or transformers does not know its kind ({why}); "
        "copy or download it again."
    )


def unloadable(config: EngineConfig, folder: Path | None, error: Exception) -> DjinnError:
    """Return the error for a failed load: check the files first, because a library's message seldom names them."""
    fault = fault_in(folder) if folder is not None else None
    if fault is not None:
        return ModelRefused(f"The weights of {config.model} cannot be read: {fault}.")
    if isinstance(error, ImportError):
        return missing(config, error)
    if isinstance(error, OSError) and not (folder is not None and weight_files(folder)):
        return not_found(config, error)
    if "allocate memory" in str(error) or isinstance(error, MemoryError):
        return ModelDoesNotFit(f"There is no main memory for {config.model} as its config.json describes it.")
    files = weight_files(folder) if folder is not None else ()
    if any(path.suffix == ".bin" for path in files) and not isinstance(error, ValueError | RuntimeError):
        return ModelRefused(
            f"The weights of {config.model} cannot be read: {files[0].name} is damaged, or holds more than tensors, "
            "and Djinn runs no code to read a file; save the model as safetensors."
        )
    return ModelRefused(f"{config.model} cannot be loaded: {on_one_line(error)}.{_without(config, error)}")


def not_found(config: EngineConfig, error: OSError) -> ModelNotFound:
    """Return the error that says what to do when a model's files cannot be obtained."""
    text = str(error)
    held = hub.held_in_cache(config.model)
    fetch = f"run `hf download {config.model}` on a machine with network and copy the cache, or give a folder"
    if "gated repo" in text or "401" in text or "403" in text:
        return ModelNotFound(
            f"{config.model} is gated or private: run `hf auth login` with an account that has access."
        )
    if "Error no file named" in text or "does not appear to have a file named" in text:
        return ModelNotFound(
            f"{config.model} is there but holds no weights that transformers reads (model.safetensors or "
            f"pytorch_model.bin, whole or in parts with their index); {_RANDOM}."
        )
    if held is not None and "Error no file named" not in text and not Path(config.model).is_dir():
        asked = f" at revision {config.revision}" if config.revision else ""
        return ModelNotFound(f"{config.model}{asked} is not in the cache and could not be fetched. {held}")
    if "couldn't connect" in text or "offline" in text.lower() or "outgoing traffic" in text:
        return ModelNotFound(f"There is no network and {config.model} is not in the cache: {fetch}.")
    if "not a valid git identifier" in text or ("revision" in text.lower() and config.revision):
        return ModelNotFound(f"{config.model} has no revision {config.revision}: {first_line(error)}")
    return ModelNotFound(f"{config.model} is neither demo, nor a folder, nor a model on the hub: {first_line(error)}")


def missing(config: EngineConfig, error: ImportError) -> MissingDependency:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return MissingDependency(
        f"{config.model} needs a package that is not installed here: {' '.join(lines[:2])}{_without(config, error)}"
    )


def _without(config: EngineConfig, error: Exception) -> str:
    """Return the remedy where the model's own configuration asks for an attention that this machine lacks."""
    asks = "toggled on" in str(error) and config.attention is None
    return f" Its config.json asks for it; {_ATTENTION}." if asks else ""


def first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__


def on_one_line(error: Exception) -> str:
    """Return an error's first 60 words without the full stop: its subject is often on the second line."""
    return " ".join(str(error).split()[:60]).rstrip(".") or type(error).__name__
