"""The inputs of a forward or a generation of nnsight, as lines for an engine and settings of its sampling."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from djinn_jupyter.errors import UsageError
from djinn_jupyter.wire.nouns import ModelDescription, Sampling

GIVEN: Final = frozenset({"input_ids", "attention_mask", "position_ids", "token_type_ids"})
WITHOUT_EFFECT: Final = frozenset({"use_cache", "return_dict", "pad_token_id", "streamer"})  # on the values of a pass
OF_SAMPLING: Final = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "seed")
SEEDS: Final = 2**62
Values = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLines:
    """The token ids of each line, without padding, and as they were given."""

    tokens: tuple[tuple[int, ...], ...]
    ids: Tensor
    padded_left: bool

    def together(self, values: Sequence[Values]) -> Values:
        """Return values of lines, [positions, ...] each, in one array. Where a line is padded there is no number."""
        if len({value.shape[1:] for value in values}) != 1:
            raise UsageError("Lines of different lengths have values of different shapes here; give lines of one.")
        width = max(len(value) for value in values)
        if all(len(value) == width for value in values):
            return np.stack(values)
        made = np.full((len(values), width, *values[0].shape[1:]), np.nan, dtype=values[0].dtype)
        for row, value in zip(made, values, strict=True):
            row[self._of(width, len(value))] = value
        return made

    def apart(self, values: Values, like: Sequence[Values]) -> list[Values]:
        """Return the values of each line, without padding."""
        return [row[self._of(len(row), len(one))] for row, one in zip(values, like, strict=True)]

    def _of(self, width: int, length: int) -> slice:
        return slice(width - length, None) if self.padded_left else slice(0, length)


def lines_of(args: Sequence[Any], given: Mapping[str, Any]) -> TokenLines:
    """Return the lines of a forward. NotImplementedError for what an engine is not given."""
    ids = given.get("input_ids", args[0] if args else None)
    if not isinstance(ids, Tensor) or ids.is_floating_point() or ids.ndim not in (1, 2):
        raise NotImplementedError("An engine is given text or token ids, [lines, positions], and nothing else.")
    ids = ids.to("cpu").reshape(-1, ids.shape[-1])
    mask = given.get("attention_mask")
    mask = torch.ones_like(ids) if mask is None else torch.as_tensor(mask).to("cpu")
    if mask.shape != ids.shape:
        raise NotImplementedError(f"A mask of shape {tuple(mask.shape)} is not one of {tuple(ids.shape)} token ids.")
    mask = mask.bool()
    left = not bool(mask[:, 0].all())
    _require_plain(given, mask, left)
    tokens = tuple(tuple(row[there].tolist()) for row, there in zip(ids, mask, strict=True))
    return TokenLines(tokens=tokens, ids=ids, padded_left=left)


def _require_plain(given: Mapping[str, Any], mask: Tensor, left: bool) -> None:
    """Raise NotImplementedError where masks, positions or types are others than those of whole lines."""
    steps = mask.long().diff(dim=-1)
    if bool((steps < 0 if left else steps > 0).any()) or not bool(mask.any(-1).all()):
        raise NotImplementedError("A line is masked at one end, as padding; an engine hides no token within it.")
    positions, types = given.get("position_ids"), given.get("token_type_ids")
    if positions is not None:
        plain = (mask.long().cumsum(-1) - 1)[mask]
        if not torch.equal(torch.as_tensor(positions).to("cpu").expand(mask.shape)[mask], plain):
            raise NotImplementedError("The positions of a line count its tokens from 0; an engine is given no others.")
    if types is not None and bool(torch.as_tensor(types).any()):
        raise NotImplementedError("An engine is given no token types.")


def require_known(given: Mapping[str, Any], known: Sequence[str] = ()) -> None:
    """Raise NotImplementedError for a setting that an engine does not have."""
    for name, value in given.items():
        if name not in {*GIVEN, *WITHOUT_EFFECT, *known} and value is not None and value is not False:
            raise NotImplementedError(f"A pass on an engine does not take {name!r}.")


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenGeneration:
    """The number of new tokens, and the choice of each."""

    max_new_tokens: int
    sampling: Sampling


def generation_of(given: Mapping[str, Any], description: ModelDescription) -> GivenGeneration:
    """Return the settings of transformers' `generate` as Djinn's. NotImplementedError for those that it lacks."""
    require_known(given, ("max_new_tokens", "do_sample", *OF_SAMPLING))
    defaults = description.generation_defaults
    count = given.get("max_new_tokens", defaults.get("max_new_tokens"))
    if count is None:
        raise NotImplementedError("Say how many tokens to generate: `max_new_tokens`.")
    count = int(count) if isinstance(count, str) else count
    chosen = {name: given[name] for name in OF_SAMPLING if given.get(name) is not None}
    draws = given.get("do_sample")
    if draws if draws is not None else defaults.get("do_sample") == "True":
        chosen.setdefault("seed", int(torch.randint(SEEDS, ())))  # `torch.manual_seed` repeats it, as in transformers
        if draws:
            chosen.setdefault("temperature", float(defaults.get("temperature", 1.0)))
        return GivenGeneration(max_new_tokens=count, sampling=Sampling(**chosen, model_defaults=True))
    penalty = chosen.get("repetition_penalty", defaults.get("repetition_penalty"))
    greedy = Sampling() if penalty is None else Sampling(repetition_penalty=float(penalty))
    return GivenGeneration(max_new_tokens=count, sampling=greedy)
