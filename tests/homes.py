"""Two homes on one CPU: `cpu:0` and `cpu:1` are told apart, and where tensors of both meet, that raises.

torch takes `cpu:1` as another name of the CPU and drops the number. Inside `two_homes` a tensor's storage has the home
that it was made on, `tensor.device` names it, and an operation on tensors of two homes raises as it does on two cards;
only `to_home`, and copies from and to main memory, move between them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

from djinn_jupyter.engine.system import device as to_home

HOMES = (torch.device("cpu", 0), torch.device("cpu", 1))
DEVICES = "cpu:0,cpu:1"
MAIN = torch.device("cpu")
_BETWEEN = {"copy_", "_foreach_copy_", "_has_compatible_shallow_copy_type", "set_data"}  # main memory and a home


class HomesMeet(RuntimeError):
    """Two homes met in one operation."""


class HomeTable:
    """The home of each storage; `moving` while `to_home` runs. `moved` counts its moves."""

    def __init__(self) -> None:
        self._homes: dict[int, tuple[StorageWeakRef, torch.device]] = {}
        self.moving: torch.device | None = None
        self.moved = 0

    def of(self, tensor: Tensor) -> torch.device:
        known = self._homes.get(tensor.untyped_storage()._cdata)
        return MAIN if known is None or known[0].expired() else known[1]

    def put(self, tensor: Tensor, home: torch.device) -> None:
        storage = tensor.untyped_storage()
        if home.index is None:
            self._homes.pop(storage._cdata, None)
        else:
            self._homes[storage._cdata] = StorageWeakRef(storage), home


class NamesDevices(TorchFunctionMode):
    """Gives `tensor.device` the home's name, and tensors made on a named home that home."""

    def __init__(self, table: HomeTable) -> None:
        super().__init__()
        self.table = table

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func == Tensor.device.__get__:
            return self.table.of(args[0])
        name = getattr(func, "__name__", "")
        if name in ("to", "cpu", "cuda"):
            wanted = _device_of(name, args, kwargs)
            if wanted is not None:
                return self._moved_to(wanted, func, args, kwargs)
        made = func(*args, **kwargs)
        if isinstance(made, Tensor) and kwargs.get("device") is not None:
            self.table.put(made, torch.device(kwargs["device"]))
        return made

    def _moved_to(self, wanted: torch.device, func: Any, args: Any, kwargs: Any) -> Tensor:
        given, here = args[0], self.table.of(args[0])
        if wanted != here and MAIN not in (wanted, here) and self.table.moving != wanted:
            raise HomesMeet(f"a tensor went from {here} to {wanted} without to_home")
        named = (one for one in (*args[1:], kwargs.get("dtype")) if isinstance(one, torch.dtype))
        dtype = next(named, given.dtype)
        if wanted == here:
            return given.to(dtype)
        with _disable_current_modes():
            made = given.detach().to(dtype, copy=True)
        self.table.put(made, wanted)
        return made


def _device_of(name: str, args: Any, kwargs: Any) -> torch.device | None:
    if name == "cpu":
        return MAIN
    named = kwargs.get("device") or next((one for one in args[1:] if isinstance(one, (torch.device, str))), None)
    return None if named is None else torch.device(named)


class TellsHomesApart(TorchDispatchMode):
    """Raises HomesMeet where tensors of two homes, or of a home and main memory, meet in an operation; its results are
    at the home of its tensors. Numbers without axes go anywhere, and so do indices from main memory."""

    def __init__(self, table: HomeTable) -> None:
        super().__init__()
        self.table = table

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        tensors = [one for one in tree_leaves((args, kwargs)) if isinstance(one, Tensor)]
        homes = {self.table.of(one) for one in tensors if one.ndim or len(tensors) == 1}
        name = func.overloadpacket.__name__
        known = homes - {MAIN}
        if len(known) > 1 or (known and MAIN in homes and name not in _BETWEEN | {"index", "index_put_"}):
            raise HomesMeet(f"{name} was given tensors of {', '.join(sorted(map(str, homes)))}")
        before = {one.untyped_storage()._cdata for one in tensors}
        made = func(*args, **kwargs)
        device = kwargs.get("device")
        home = next(iter(known), MAIN) if device is None else torch.device(device)
        for one in tree_leaves(made):
            if isinstance(one, Tensor) and home != MAIN and one.untyped_storage()._cdata not in before:
                self.table.put(one, home)
        return made


@contextmanager
def two_homes(monkeypatch: Any) -> Iterator[HomeTable]:
    """Tell `cpu:0` and `cpu:1` apart on this thread inside this block."""
    table = HomeTable()

    def moving(tensor: Tensor, home: torch.device) -> Tensor:
        if tensor.device == home:
            return tensor
        table.moving, table.moved = home, table.moved + 1
        try:
            return tensor.to(home)
        finally:
            table.moving = None

    for module in _users_of(to_home.to_home):
        monkeypatch.setattr(module, "to_home", moving)
    with NamesDevices(table), TellsHomesApart(table):
        yield table


def _users_of(function: Any) -> list[Any]:
    import sys

    return [
        module
        for name, module in list(sys.modules.items())
        if name.startswith("djinn_jupyter.") and getattr(module, "to_home", None) is function
    ]
