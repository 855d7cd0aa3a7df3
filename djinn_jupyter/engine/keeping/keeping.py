"""What an engine has for keeping sessions: where, for which model, and the thread that works on the files."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import torch
from jupyter_core.paths import jupyter_data_dir

from djinn_jupyter.engine.config import EngineConfig
from djinn_jupyter.engine.keeping.checkpoints import CheckpointFolder
from djinn_jupyter.engine.keeping.errands import Errands
from djinn_jupyter.engine.keeping.identity import ModelIdentity

FOLDER: Final = "djinn"
CHECKPOINTS: Final = "checkpoints"


class Keeping:
    """`checkpoints` may be used from any thread; `errands` are started by jobs of the engine."""

    def __init__(self, config: EngineConfig, identity: ModelIdentity, device: torch.device) -> None:
        folder = config.data_folder or Path(jupyter_data_dir()) / FOLDER
        self.identity = identity
        self.checkpoints = CheckpointFolder(folder / CHECKPOINTS, identity, device)
        self.errands = Errands("djinn-checkpoints")

    def close(self) -> None:
        self.errands.close()
