"""A trained module: its folder, and what is said of it there."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from djinn_jupyter.client.displayed import Displayed
from djinn_jupyter.errors import UsageError

if TYPE_CHECKING:
    import numpy as np

PROVENANCE: Final = "provenance.json"
VECTOR: Final = "vector.npy"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedModule(Displayed):
    """A module in a `folder` that `engine.add_module` takes. `figures` say how well it does, by name; `provenance` is
    the recipe: the call, the collection with its model and prompts, and the versions, and of a training that was
    interrupted how many steps were done."""

    folder: Path
    site: str
    kind: str
    figures: dict[str, float]
    provenance: dict[str, Any]

    @property
    def recipe(self) -> dict[str, Any]:
        """All that its numbers follow from: its provenance."""
        return self.provenance

    @property
    def vector(self) -> np.ndarray[Any, Any]:
        """The vector of a steering vector, [features], float32, for `dj.add`. UsageError for another kind."""
        import numpy as np

        if not (self.folder / VECTOR).is_file():
            raise UsageError(f"{self.folder} has no vector, for its module is of kind {self.kind}.")
        found: np.ndarray[Any, Any] = np.load(self.folder / VECTOR, allow_pickle=False)
        return found

    def __repr__(self) -> str:
        figures = ", ".join(f"{name.replace('_', ' ')} {value:.3g}" for name, value in self.figures.items())
        return f"{self.kind} of {self.site} in {self.folder}{self.cut and f', {self.cut}'}: {figures}"

    @property
    def cut(self) -> str:
        """The step at which its training was interrupted, as text; empty for a whole one."""
        far = self.provenance.get("interrupted")
        return "" if far is None else f"interrupted at step {far['done']:,} of {far['of']:,}"


def module_in(folder: Path, site: str, kind: str) -> TrainedModule:
    """Return the module that a training has written."""
    said = json.loads((folder / PROVENANCE).read_text(encoding="utf-8"))
    return TrainedModule(folder=folder, site=site, kind=kind, figures=said.pop("figures"), provenance=said)
