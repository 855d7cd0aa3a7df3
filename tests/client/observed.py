"""What a verb returns and what sessions are, as plain values that can be compared: without times, places on the disk
and the numbers that an engine gives to stops."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from djinn_jupyter.api.session import RemoteSession
from djinn_jupyter.api.stops import Finished
from djinn_jupyter.methods.datasets.api.activations import Activations
from djinn_jupyter.wire.nouns import StopIdentity

NOISE = frozenset({"seconds", "idle_seconds", "saved", "path", "last_transfer", "transfer", "by"})


def plain(value: Any) -> Any:
    """Return the value in lists, dicts, numbers and texts; bytes for arrays and files."""
    match value:
        case np.ndarray():
            return value.shape, value.tobytes()
        case RemoteSession() | Path():
            return value.name
        case Activations():
            return [path.read_bytes() for path in sorted(value.folder.glob("*.safetensors"))]
        case StopIdentity():
            return None
        case msgspec.Struct():
            return {name: plain(getattr(value, name)) for name in value.__struct_fields__ if name not in NOISE}
        case dict():
            return {name: plain(one) for name, one in value.items()}
        case list() | tuple():
            return [plain(one) for one in value]
        case Finished():
            return plain(value.reply), plain(value.logits)
    told = next((getattr(value, name) for name in ("reply", "replies") if hasattr(value, name)), None)
    return value if told is None else (type(value).__name__, plain(told))
