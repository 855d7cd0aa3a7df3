"""The parts of a model beside its language part: towers for images and sound.

A part is another one where it was built from a section of the configuration beside that of the text. Knows modules and
configurations, no names of families.
"""

from __future__ import annotations

from typing import Any

from torch import nn
from transformers import PreTrainedModel


def other_sections(configuration: Any) -> tuple[Any, ...]:
    """The configurations, within this one, of parts beside the text."""
    sections = getattr(type(configuration), "sub_configs", None) or {}
    text = configuration.get_text_config(decoder=True)
    found = (getattr(configuration, name, None) for name in sections)
    return tuple(section for section in found if section is not None and section is not text)


def other_parts(model: PreTrainedModel) -> dict[str, nn.Module]:
    """The outermost modules, by their path, that were built from a section of the configuration beside the text's."""
    sections = [id(section) for section in other_sections(model.config)]
    parts: dict[str, nn.Module] = {}
    for path, module in model.named_modules():
        within = any(path.startswith(f"{outer}.") for outer in parts)
        if not within and id(getattr(module, "config", None)) in sections:
            parts[path] = module
    return parts


def leave_out(model: PreTrainedModel) -> None:
    """Take the other parts out of the model: a text pass does not run them, and their weights need no device. One that
    is run after all fails at the first probe, in an error that names it."""
    for path in other_parts(model):
        above, _, name = path.rpartition(".")
        setattr(model.get_submodule(above), name, None)


def around_text(model: PreTrainedModel) -> list[str]:
    """The paths of the text model and of every module around it, from the inside out."""
    decoder = model.get_decoder()
    path = next((path for path, module in model.named_modules() if module is decoder), "")
    paths = [path]
    while path:
        path = path.rpartition(".")[0]
        paths.append(path)
    return paths
