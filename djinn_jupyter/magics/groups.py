"""All groups of magics, in the order of their reference. Imported when the extension is loaded and not before."""

from __future__ import annotations

from typing import Final

from djinn_jupyter.magics.adapting import AdaptingMagics
from djinn_jupyter.magics.adding import AddingMagics
from djinn_jupyter.magics.branching import BranchingMagics
from djinn_jupyter.magics.breaking import BreakingMagics
from djinn_jupyter.magics.changing import ChangingMagics
from djinn_jupyter.magics.debugging import DebuggingMagics
from djinn_jupyter.magics.keeping import KeepingMagics
from djinn_jupyter.magics.loading import LoadingMagics
from djinn_jupyter.magics.looking import LookingMagics
from djinn_jupyter.magics.memory import MemoryMagics
from djinn_jupyter.magics.parsing import Group
from djinn_jupyter.magics.reproducing import ReproducingMagics
from djinn_jupyter.magics.running import RunningMagics
from djinn_jupyter.methods.attribution.magic import AttributingMagics
from djinn_jupyter.methods.circuits.magic.circuits import CircuitMagics
from djinn_jupyter.methods.circuits.magic.edges import EdgeMagics
from djinn_jupyter.methods.datasets.magic import CollectingMagics
from djinn_jupyter.methods.direct.magic import DirectMagics
from djinn_jupyter.methods.graphs.magic import GraphMagics
from djinn_jupyter.methods.heads.magic import HeadsMagics
from djinn_jupyter.methods.paths.magic import PathMagics
from djinn_jupyter.methods.sweep.magic import SweepingMagics

GROUPS: Final[tuple[type[Group], ...]] = (
    LoadingMagics,
    BreakingMagics,
    RunningMagics,
    LookingMagics,
    ChangingMagics,
    BranchingMagics,
    KeepingMagics,
    MemoryMagics,
    SweepingMagics,
    PathMagics,
    AttributingMagics,
    EdgeMagics,
    CircuitMagics,
    GraphMagics,
    DirectMagics,
    ReproducingMagics,
    HeadsMagics,
    AddingMagics,
    AdaptingMagics,
    CollectingMagics,
    DebuggingMagics,
)
