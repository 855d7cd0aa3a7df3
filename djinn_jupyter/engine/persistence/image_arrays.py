"""The arrays of a file, each read once, when an image first refers to it, onto its own device."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from djinn_jupyter.engine.persistence.records import FoundRecord, RecordReader


class Arrays(Mapping[int, Tensor]):
    """Arrays by their numbers in the file. `device` is the engine's; a tensor on it owns its memory, so that the tiers
    can free it. A look-up raises CheckpointRefused where memory is short."""

    def __init__(self, reader: RecordReader, found: Mapping[int, FoundRecord], device: torch.device) -> None:
        self._reader, self._found, self._device = reader, found, device
        self._read: dict[int, Tensor] = {}

    def __getitem__(self, number: int) -> Tensor:
        if number not in self._read:
            self._read[number] = self._values(self._found[number])
        return self._read[number]

    def _values(self, found: FoundRecord) -> Tensor:
        assert found.head is not None
        tensor = self._reader.values(found)
        return tensor.to(self._device, copy=True) if found.head.at_home else tensor

    def __iter__(self) -> Iterator[int]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)
