"""The parts of a model besides its language part: towers for images and sound.

A part counts as one where it was built from a section of the configuration besides the text's. Knows modules and
configurations, no names of families.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel


class LeftOut(nn.Module):
    """Replaces a part that is left out: without weights, but with the attributes that a text pass may read from a part
    it does not run (its configuration, its device). Refuses to run."""

    def __init__(self, path: str, part: PreTrainedModel, whole: PreTrainedModel) -> None:
        super().__init__()
        plain = (bool, int, float, str)
        vars(self).update({name: value for name, value in vars(part).items() if isinstance(value, plain)})
        self.config, self.dtype = part.config, part.dtype
        self._path, self._whole = path, (whole,)  # in a tuple, so that it is no submodule of its part

    @property
    def device(self) -> torch.device:
        return self._whole[0].device

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        raise ValueError(f"it runs {self._path} also without an image or sound")


def sections(configuration: Any) -> tuple[Any, ...]:
    """Return the sub-configurations that a configuration has."""
    names = getattr(type(configuration), "sub_configs", None) or {}
    return tuple(section for name in names if (section := getattr(configuration, name, None)) is not None)


def other_sections(configuration: Any) -> tuple[Any, ...]:
    """Return the sub-configurations of parts that contain no text model."""
    text = configuration.get_text_config(decoder=True)
    return tuple(one for one in sections(configuration) if one.get_text_config(decoder=True) is not text)


def other_parts(model: PreTrainedModel) -> dict[str, PreTrainedModel]:
    """Return by path the outermost models within this one that were built from a section besides the text's."""
    others = [id(section) for section in other_sections(model.config)]
    parts: dict[str, PreTrainedModel] = {}
    for path, module in model.named_modules():
        within = any(path.startswith(f"{outer}.") for outer in parts)
        if not within and isinstance(module, PreTrainedModel) and id(module.config) in others:
            parts[path] = module
    return parts


def leave_out(model: PreTrainedModel) -> PreTrainedModel:
    """Remove the weights of the model's other parts: a text pass does not run them, and they need no device. A family
    that does run one is refused at the first probe, by the name of that part."""
    for path, part in other_parts(model).items():
        above, _, name = path.rpartition(".")
        setattr(model.get_submodule(above), name, LeftOut(path, part, model))
    return model


def around_text(model: PreTrainedModel) -> list[str]:
    """Return the paths of the text model and of every module around it, from the inside out."""
    decoder = model.get_decoder()
    path = next((path for path, module in model.named_modules() if module is decoder), "")
    paths = [path]
    while path:
        path = path.rpartition(".")[0]
        paths.append(path)
    return paths
