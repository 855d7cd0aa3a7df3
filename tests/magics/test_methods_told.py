"""`%djinn_status` says which methods the engine and this kernel do not share."""

from __future__ import annotations

import msgspec

from tests.magics.conftest import Notebook


def test_status_names_the_methods_that_an_engine_lacks_or_leaves_out(notebook: Notebook) -> None:
    assert "the engine lacks" not in notebook.cell("%djinn_status")
    channel = notebook.engine.channel
    others = tuple(one for one in channel.welcome.methods if one[0] != "heads")
    channel.welcome = msgspec.structs.replace(channel.welcome, methods=others, left_out=("It is\n left out.",))
    said = notebook.cell("%djinn_status")
    assert "the engine lacks heads (djinn_jupyter.methods.heads of djinn-jupyter" in said
    assert r"in the engine: It is\n left out." in said
