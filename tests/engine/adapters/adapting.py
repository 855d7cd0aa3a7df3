"""Add an adapter's folder to the engine of a desk, and open sessions that compute with it."""

from __future__ import annotations

from pathlib import Path

from djinn_jupyter.modules.files.peft import read_adapter
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.replies import AdapterAdded
from tests import adapters
from tests.engine.desk import Desk

ENDS = {
    "llama": ("q_proj", "v_proj", "o_proj", "gate_proj", "down_proj"),
    "gpt2": ("c_attn", "c_fc", "c_proj"),
}


def request(folder: Path, name: str = "sql", session: str = "adapter 1") -> ask.AddAdapter:
    found = read_adapter(folder)
    return ask.AddAdapter(
        session=session, name=name, modules=found.modules, folder=str(found.path), digest=found.digest
    )


def add(desk: Desk, folder: Path, name: str = "sql") -> AdapterAdded:
    """Add an adapter, in a session of its own as the client does."""
    desk.ask(ask.Open(session="adapter 1", temporary=True))
    try:
        return desk.ask(request(folder, name))
    finally:
        desk.close("adapter 1")


def drawn(desk: Desk, family: str = "llama", seed: int = 0) -> adapters.Tensors:
    return adapters.drawn(desk.engine.model, ENDS[family], seed=seed)


def use(desk: Desk, session: str, adapter: str | None = "sql") -> str:
    """Open a session and have it compute with the adapter."""
    desk.open(session)
    desk.ask(ask.SetAdapter(session=session, adapter=adapter))
    return session


def let_go(desk: Desk) -> None:
    """Remove every adapter of a desk without sessions, and see that no byte of one is left."""
    for one in desk.ask(ask.ListAdapters()).adapters:
        desk.ask(ask.RemoveAdapter(name=one.name))
    desk.engine.budget.check()
    assert desk.engine.budget.held()["adapters"] == 0
    assert all("forward" not in vars(module) for _, module in inner(desk))


def inner(desk: Desk) -> list[tuple[str, object]]:
    """Return the modules within the layers, whose forward is their class's between passes."""
    layers = set(desk.engine.forward.anatomy.layers)
    return [(path, one) for path, one in desk.engine.model.named_modules() if path and one not in layers]
