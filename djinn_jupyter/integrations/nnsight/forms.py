"""The form in which a module takes or returns values: tuples, dicts and outputs around one tensor that an engine has.
The others of its tensors stay in the engine's process, and say so where they are used."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, NoReturn

import torch
from torch import Tensor

from djinn_jupyter.errors import UsageError

ONLY_THE_FIRST: Final = "of what a module takes or returns, the first tensor is changed, and no other part."
PLAIN: Final = (bool, int, float, str, torch.dtype, torch.device, type(None))
Trail = tuple[Any, ...]  # the keys and indices that lead to a part


class NotServed:
    """Stands where a part of a value is only in the engine's process. Whatever is done with it is refused."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        return f"<not served: {self._name}>"

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise NotImplementedError(
            f"{self._name} stays in the engine's process: of what a module takes or returns, the first tensor is read."
        )

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> NoReturn:
        given = [*args, *(kwargs or {}).values()]
        next(one for one in given if isinstance(one, NotServed))._refuse()

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        self._refuse()

    __getitem__ = __call__ = __iter__ = __len__ = _refuse
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _refuse


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueForm:
    """The form of the value at a location: `around` is all but the tensor at `trail`, whose shape the model had on the
    lines that were tried. Without a floating tensor there is no trail."""

    name: str
    around: Any
    trail: Trail | None
    shape: tuple[int, ...] = ()
    dtype: torch.dtype = torch.float32

    def filled(self, value: Tensor) -> Any:
        """Return what a module takes or returns, with this tensor in its place."""
        return value if self.trail is None or not self.trail else _put(self.around, self.trail, value)

    def tensor_in(self, left: Any) -> Tensor:
        """Return the tensor in what took its place. UsageError where that has another form, or where another part of it
        was changed."""
        _require_alike(self.name, self.around, left, self.trail or ())
        value = left
        for key in self.trail or ():
            value = value[key]
        if not isinstance(value, Tensor):
            raise UsageError(f"{self.name} holds a tensor; it was replaced by a {type(value).__name__}.")
        return value


def form_of(name: str, value: Any) -> ValueForm:
    """Return the form of a value, whose first floating tensor is the one that an engine has."""
    found = next(_parts(value), None)
    trail, tensor = found if found is not None else (None, None)
    around = _mapped(value, (), lambda at, one: _left(name, at, one, trail))
    if tensor is None:
        return ValueForm(name=name, around=around, trail=None)
    return ValueForm(name=name, around=around, trail=trail, shape=tuple(tensor.shape), dtype=tensor.dtype)


def first_tensor(value: Any) -> Tensor | None:
    return next((one for _, one in _parts(value)), None)


def _left(name: str, at: Trail, one: Any, chosen: Trail | None) -> Any:
    if at == chosen or isinstance(one, PLAIN):
        return None if at == chosen else one
    return NotServed(name + "".join(f"[{key!r}]" for key in at))


def _parts(value: Any, at: Trail = ()) -> Iterator[tuple[Trail, Tensor]]:
    """Yield all floating tensors within."""
    if isinstance(value, Tensor):
        if value.is_floating_point():
            yield at, value
    elif isinstance(value, dict | list | tuple):
        for key, one in _entries(value):
            yield from _parts(one, (*at, key))


def _entries(value: Any) -> list[tuple[Any, Any]]:
    return list(value.items() if isinstance(value, dict) else enumerate(value))


def _mapped(value: Any, at: Trail, change: Callable[[Trail, Any], Any]) -> Any:
    """Return a value of the same containers whose leaves are changed."""
    if not isinstance(value, dict | list | tuple):
        return change(at, value)
    return _rebuilt(value, {key: _mapped(one, (*at, key), change) for key, one in _entries(value)})


def _put(value: Any, trail: Trail, put: Any) -> Any:
    if not trail:
        return put
    parts = dict(_entries(value))
    return _rebuilt(value, parts | {trail[0]: _put(parts[trail[0]], trail[1:], put)})


def _rebuilt(value: Any, parts: dict[Any, Any]) -> Any:
    """Return a container of the same type: transformers' outputs are dicts that also have attributes."""
    if isinstance(value, dict):
        made = value.copy()
        for key, one in parts.items():
            made[key] = one
        return made
    if hasattr(value, "_fields"):
        return type(value)(*parts.values())
    return type(value)(parts.values())


def _require_alike(name: str, around: Any, left: Any, trail: Trail) -> None:
    if not trail and not isinstance(around, dict | list | tuple):
        return
    if not isinstance(around, dict | list | tuple):
        raise UsageError(f"{name}: {ONLY_THE_FIRST}")
    if type(left) is not type(around) or len(left) != len(around):
        raise UsageError(
            f"{name} is a {type(around).__name__} of {len(around)}; it was replaced by a {type(left).__name__}."
        )
    parts = dict(_entries(left))
    for key, one in _entries(around):
        if trail and key == trail[0]:
            _require_alike(name, one, parts[key], trail[1:])
        elif not _same(one, parts[key]):
            raise UsageError(f"{name}: {ONLY_THE_FIRST}")


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, dict | list | tuple):
        if type(one) is not type(other) or len(one) != len(other):
            return False
        parts = dict(_entries(other))
        return all(key in parts and _same(part, parts[key]) for key, part in _entries(one))
    return one is other or (isinstance(one, PLAIN) and type(one) is type(other) and one == other)
