"""A tool that is not installed is named in one sentence, with the extra that installs it."""

from __future__ import annotations

import importlib
import sys

import pytest

from djinn_jupyter.errors import MissingDependency

PEERS = {"nnsight": "nnsight 0.8", "transformer_lens": "TransformerLens 4"}


@pytest.mark.parametrize("peer", PEERS)
def test_a_tool_that_is_not_there_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch, peer: str) -> None:
    package = f"djinn_jupyter.integrations.{peer}"
    for name in [name for name in sys.modules if name == package or name.startswith(f"{package}.")]:
        monkeypatch.delitem(sys.modules, name)
    for name in [name for name in sys.modules if name.startswith(f"{peer}.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, peer, None)
    extra = peer.replace("_", "-")
    with pytest.raises(MissingDependency, match=rf"{PEERS[peer]}: pip install 'djinn-jupyter\[{extra}\]'") as raised:
        importlib.import_module(package)
    assert "\n" not in str(raised.value)
