"""Convert a load's arguments to the form of engines, and check them against this machine's files: a typo, an adapter or
a GGUF file is refused here, before an engine has imported torch.

The engine checks everything else (existing GPUs, a model on the hub, a known architecture).
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from importlib.util import find_spec
from os import PathLike
from pathlib import Path
from typing import Any, Final

from djinn_jupyter.api.arguments import given_path
from djinn_jupyter.errors import MissingDependency, ModelNotFound, UsageError
from djinn_jupyter.machine import MPS_REFUSED, why_no_gpu
from djinn_jupyter.model_files import folder_called, path_called
from djinn_jupyter.settings import AMOUNTS, Identity, ProcessOptions, split_address
from djinn_jupyter.units import parse_bytes

DTYPES: Final = ("float32", "bfloat16", "float16")
DEVICES: Final = ("cpu", "cuda", "mps", "xpu")
ATTENTIONS: Final = ("sdpa", "eager", "flash_attention_2", "flash_attention_3", "flex_attention")
_SHORT_DTYPES: Final = {
    "fp32": "float32", "float": "float32", "bf16": "bfloat16", "fp16": "float16", "half": "float16",
}  # fmt: skip
_DEVICE: Final = re.compile(r"([a-z]+)(:\d+)?")
_HUB_NAME: Final = re.compile(r"(?!.*(--|\.\.))(\w[\w.-]*/)?\w[\w.-]{0,94}", re.ASCII)
_STORE: Final = re.compile(r"s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/[\w.-]+)*/?", re.ASCII)
_LISTEN: Final = re.compile(r"tcp://(\S+):(\d+|\*)")
LAST_PORT: Final = 2**16 - 1
_NO_NUMBER: Final = re.compile(r"^argument (?P<option>.*): invalid (?P<kind>int|float) value: (?P<value>.*)$")
_NO_CHOICE: Final = re.compile(
    r"argument (?P<option>.+?): invalid choice: (?P<value>.+) \(choose from (?P<choices>.+)\)"
)
_NEEDED: Final = ("torch", "transformers", "tokenizers", "safetensors")


def spell_model(model: str | Path) -> str:
    """Return a folder or a GGUF file as its absolute path, the same in every process; `demo` and hub names unchanged.
    UsageError where `model` is neither text nor a path."""
    if not isinstance(model, str | PathLike):
        raise UsageError(f"A model is named by a text or a path, not by {type(model).__name__}: write dj.load('demo').")
    text = str(model)
    if text in ("", "demo"):
        return text
    if (path := path_called(text)).is_dir():
        return str(path.resolve())
    if path.suffix == ".gguf" and path.is_file():
        # The file itself is not resolved: one of the hub's cache, to which a link leads, has no suffix.
        return str(path.parent.resolve() / path.name)
    return text


def folder_passed_over(model: object) -> str | None:
    """Return a note on a model in a local folder named like the demo, which is loaded instead."""
    if model != "demo" or not Path(model, "config.json").is_file():
        return None
    return "demo is the model that comes with Djinn; the one in the folder of that name here is ./demo."


def spell_option(name: str, value: Any) -> Any:
    """Return an option's value in the form of engines. UsageError for an invalid amount, dtype or device."""
    spell = _SPELLED.get(name)
    return value if spell is None else spell(value)


def spell_dtype(dtype: object) -> str | None:
    """Return torch's name for a dtype given as text or as torch's own. UsageError unless models are served in it."""
    if dtype is None:
        return None
    asked = str(dtype)
    name = asked.removeprefix("torch.")
    name = _SHORT_DTYPES.get(name, name)
    if name not in DTYPES:
        near = closest(name, (*DTYPES, *_SHORT_DTYPES))
        raise UsageError(f"{asked!r} is no dtype to serve a model in{near or '.'} Write float32, bfloat16 or float16.")
    return name


def spell_device(asked: object) -> str | None:
    """Return a device, given as text or as torch's own, as engines name it: `cuda` becomes `cuda:0`. UsageError if
    unknown."""
    if asked is None:
        return None
    device = str(asked)
    found = _DEVICE.fullmatch(device)
    if found is None or found[1] not in DEVICES:
        near = closest(re.sub(r":.*", "", device).lower(), DEVICES, gpu="cuda")
        raise UsageError(f"{device!r} is no device{near or '.'} Write cpu, cuda or cuda:1.")
    return "cuda:0" if device == "cuda" else device


def spell_shared(asked: object) -> str:
    """Return the place of a shared journal: a folder or a store. UsageError for others; in other stores fsspec cannot
    replace an object on the condition that it has not changed."""
    return _spell_place(
        str(asked),
        "A journal lies in a folder that all machines mount, or in a store that speaks S3, at s3://BUCKET/PATH without "
        "keys and options (they belong into the environment of the engine): elsewhere fsspec has no atomic "
        "compare-and-put, by which one engine alone writes it.",
    )


def spell_checkpoints(asked: object) -> str:
    """Return the place of checkpoints: a folder or a store. UsageError for another kind of store, and for an address
    with credentials, which the list of processes would show to all users."""
    return _spell_place(
        str(asked),
        "Checkpoints lie in a folder, or in a store that speaks S3, at s3://BUCKET/PATH: without keys and options, "
        "which belong into the environment of the engine (AWS_ACCESS_KEY_ID, AWS_ENDPOINT_URL and so on).",
    )


def spell_moves(asked: object) -> str:
    """Return the store where sessions wait between two engines. UsageError for others, and for a folder."""
    if "://" not in str(asked):
        raise UsageError(
            "Sessions wait in the folder of the shared journal without an option; --moves is for engines without a "
            "folder in common, and takes a store that speaks S3, as s3://BUCKET/PATH."
        )
    return _spell_place(
        str(asked),
        "Sessions on their way wait in a store that speaks S3, at s3://BUCKET/PATH without keys and options (they "
        "belong into the environment of the engine).",
    )


def _spell_place(text: str, otherwise: str) -> str:
    """Return a folder as its absolute path, or the address of a store that speaks S3."""
    if "://" not in text:
        return str(given_path(text, "folder"))
    if _STORE.fullmatch(text) is None:
        raise UsageError(otherwise)
    return text.rstrip("/")


_SPELLED: Final[dict[str, Callable[[Any], Any]]] = {
    "dtype": spell_dtype,
    "device": spell_device,
    "shared_journal": spell_shared,
    "checkpoints": spell_checkpoints,
    "moves": spell_moves,
    **dict.fromkeys(AMOUNTS, parse_bytes),
}


def check_words(identity: Identity, serving: ProcessOptions) -> None:
    """Raise UsageError or ModelNotFound where the model, the device, the attention or an address is invalid."""
    _check_attention(identity.attention)
    _check_listen(serving.listen)
    if serving.metrics is not None:
        split_address(serving.metrics)
    _check_device(identity.device)
    _check_model(identity.model)


def require_engine_parts() -> None:
    """Raise MissingDependency where this environment has only the client installed."""
    missing = [name for name in _NEEDED if find_spec(name) is None]
    if missing:
        what = " and ".join(filter(None, (", ".join(missing[:-1]), missing[-1])))
        are = "are" if len(missing) > 1 else "is"
        raise MissingDependency(f"An engine needs {what}, which {are} not installed here: pip install djinn-jupyter.")


def closest(word: str, known: Iterable[str], **meant: str) -> str:
    """Return `; did you mean float32?` for a word near a known one, else "". `meant` maps synonyms to known words."""
    found = [meant[word]] if word in meant else get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f"; did you mean {found[0]}?" if found else ""


def value_in_words(said: str) -> str:
    """Rephrase argparse's message about a value that is not a number, or not one of the choices, without Python
    types."""
    if (found := _NO_NUMBER.match(said)) is not None:
        kind = "a whole number" if found["kind"] == "int" else "a number"
        return f"{found['option']} takes {kind}, not {found['value']}."
    if (found := _NO_CHOICE.match(said)) is not None:
        return f"{found['option']} is one of {found['choices']}, not {found['value']}."
    return said


def closest_option(word: str, known: Iterable[str], meant: Mapping[str, str]) -> str:
    """Return `; did you mean --when?` for an option near a known one, else "". Leading dashes do not count. `meant`
    maps other names of options, such as their Python parameters, to the options."""
    bare = {name.lstrip("-"): name for name in known} | {name.replace("_", "-"): one for name, one in meant.items()}
    found = get_close_matches(word.lstrip("-"), list(bare), n=1, cutoff=0.6)
    return f"; did you mean {bare[found[0]]}?" if found else ""


def in_full(words: Iterable[str], options: Mapping[str, object]) -> list[str]:
    """Write out an abbreviation that fits two names of one option, which argparse would call ambiguous. `options` are
    argparse's actions by their names."""
    return [_in_full(word, options) for word in words]


def _in_full(word: str, options: Mapping[str, object]) -> str:
    name, equals, value = word.partition("=")
    fitting = [one for one in options if one.startswith(name)] if name.startswith("--") else []
    one_option = len(fitting) > 1 and name not in options and len({options[one] for one in fitting}) == 1
    return f"{fitting[-1]}{equals}{value}" if one_option else word


def _check_attention(attention: str | None) -> None:
    if attention is None or attention in ATTENTIONS or "/" in attention:  # a kernel from the hub
        return
    raise UsageError(f"{attention!r} is no attention{closest(attention, ATTENTIONS) or '.'} Write sdpa or eager.")


def _check_listen(listen: str | None) -> None:
    """Raise UsageError for an invalid address, or a port that zmq would silently replace."""
    if listen is None:
        return
    found = _LISTEN.fullmatch(listen)
    if found is None:
        raise UsageError(f"{listen!r} is no address to listen on; write tcp://127.0.0.1:7777, or :* for any port.")
    if found[2] != "*" and int(found[2]) > LAST_PORT:
        raise UsageError(f"A port is at most {LAST_PORT}, not {found[2]}.")


def _check_model(model: str) -> None:
    if model == "demo" or folder_called(model) is not None:
        return
    if _HUB_NAME.fullmatch(model) is None:
        raise ModelNotFound(
            f"{model!r} is neither a folder nor the name of a model on the hub, which is spelled owner/model in "
            "letters, digits, -, _ and single dots."
        )


def _check_device(device: str | None) -> None:
    """Raise UsageError for mps, and for cuda without a GPU's device file. torch checks the index of a GPU."""
    if device is not None and device.startswith("mps"):
        elsewhere = "mps is the GPU of a Mac, which this machine is not. Write cpu, cuda or cuda:1."
        raise UsageError(MPS_REFUSED if sys.platform == "darwin" else elsewhere)
    if device is not None and device.startswith("cuda") and (why := why_no_gpu()):
        raise UsageError(f"There is no device {device}: {why}. Write cpu, or leave the device out.")
