"""This user's folder of keys, and the drawing of a pair."""

from __future__ import annotations

from pathlib import Path

from jupyter_core.paths import jupyter_data_dir

from djinn_jupyter.client.engines.naming import user_name
from djinn_jupyter.wire.host import host_name
from djinn_jupyter.wire.keys import FOLDER, KeyFolder, KeyPair


def key_folder() -> KeyFolder:
    """Return the folder of keys in this user's data of Jupyter."""
    return KeyFolder(Path(jupyter_data_dir()) / FOLDER)


def draw_own(name: str | None) -> tuple[str, KeyPair]:
    """Draw a pair of one's own, named after this user where it is given no name. Return both. UsageError where there is
    one of that name."""
    chosen = name or user_name()
    return chosen, key_folder().draw_own(chosen, draw)


def of_engines_here() -> KeyPair:
    """Return the pair of this user's engines on this machine."""
    return key_folder().server(host_name(), draw)


def draw() -> tuple[bytes, bytes]:
    """Draw a CURVE pair: public and secret, 32 bytes each."""
    import zmq  # not at import: the process of `djinn serve` stays small
    from zmq.utils import z85

    public, secret = zmq.curve_keypair()
    return z85.decode(public), z85.decode(secret)
