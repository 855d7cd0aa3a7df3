"""Files of the format of safetensors, taken apart and put together with another content."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any


def parts(path: Path) -> tuple[dict[str, Any], bytes]:
    """Return the head of a file, and the bytes of its tensors."""
    data = path.read_bytes()
    end = 8 + int.from_bytes(data[:8], "little")
    return json.loads(data[8:end]), data[end:]


def put(path: Path, head: dict[str, Any], body: bytes) -> None:
    written = json.dumps(head).encode()
    path.write_bytes(len(written).to_bytes(8, "little") + written + body)


def told(head: dict[str, Any]) -> Any:
    """Return the text that a head has for Djinn."""
    return json.loads(head["__metadata__"]["djinn"])


def put_told(path: Path, head: dict[str, Any], body: bytes, told: Any) -> None:
    """Write a file with another text and the digest of that."""
    text = json.dumps(told)
    digest = hashlib.sha256(text.encode() + body).hexdigest()
    put(path, {**head, "__metadata__": {"djinn": text, "digest": digest}}, body)
