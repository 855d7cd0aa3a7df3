"""Rank 0's side of a split model: it runs the pass as on one device, and has the other ranks run each layer with it.
The engine above knows one model. What is decided there (a halt, a yield, an edit, an error, memory that ran out) leaves
or changes a layer on rank 0, and is told to the others before their next collective."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

from torch import Tensor, nn
from transformers import Cache

from djinn_jupyter.engine.model.discovery.model_map import Anatomy
from djinn_jupyter.engine.model.hooks.gates import LayerForm
from djinn_jupyter.engine.model.hooks.taps import OnValue, Tap, catch
from djinn_jupyter.engine.system.log import LoggedRequest, present
from djinn_jupyter.errors import ModelRefused, UsageError
from djinn_jupyter.parallel import group as orders
from djinn_jupyter.parallel.cutting import TapKey, key_of
from djinn_jupyter.parallel.group import RankGroup
from djinn_jupyter.parallel.ranks import RankLost, Ranks
from djinn_jupyter.parallel.rows import WholeRows

TENSOR: Final = 0
CACHE: Final = 1
PLAIN: Final = 2
SEQUENCE: Final = 3
MAPPING: Final = 4
Packed = tuple[int, Any]


class KnownTensors:
    """The tensors of the leader's last call of a layer, and what that returned, which the other ranks know by number.
    None of them is sent again: masks and rotary tables are the same for all layers of a pass, and the hidden state that
    a layer returns is the next one's. Held here, so that no other tensor gets their identity."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[int, Tensor]] = {}
        self._used: dict[int, tuple[int, Tensor]] = {}
        self._sent: list[tuple[int, Tensor]] = []
        self._last = 0

    def pack(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Packed, list[tuple[orders.TensorForm, Tensor]]]:
        """Return the arguments of a call, and the tensors among them that have to be sent."""
        self._used, self._sent = {}, []
        packed = self._packed((args, kwargs))
        return packed, [(orders.form_of(number, tensor), tensor) for number, tensor in self._sent]

    def were_sent(self) -> None:
        """Record that all ranks have those tensors now."""
        self._known = self._used

    def number(self) -> int:
        """Return a number for a tensor that is still to be made."""
        self._last += 1
        return self._last

    def know(self, number: int, tensor: Tensor) -> None:
        """Record that all ranks have made this tensor."""
        self._known[id(tensor)] = number, tensor

    def _packed(self, value: Any) -> Packed:
        if isinstance(value, Tensor):
            return TENSOR, self._numbered(value)
        if isinstance(value, Cache):
            return CACHE, None
        if value is None or isinstance(value, bool | int | float | str):
            return PLAIN, value
        if isinstance(value, tuple | list):
            return SEQUENCE, [self._packed(part) for part in value]
        if isinstance(value, Mapping) and all(isinstance(name, str) for name in value):
            return MAPPING, {name: self._packed(part) for name, part in value.items()}
        raise ModelRefused(
            f"Its layers are given a {type(value).__name__}, which cannot be told to other ranks: load it without "
            "--tensor-parallel."
        )

    def _numbered(self, tensor: Tensor) -> int:
        found = self._used.get(id(tensor)) or self._known.get(id(tensor))
        if found is None:
            found = self.number(), tensor
            self._sent.append(found)
        self._used[id(tensor)] = found
        return found[0]


def unpack(packed: Any, tensors: Mapping[int, Tensor], cache: Cache) -> Any:
    """Return the packed arguments, with a rank's own tensors and cache."""
    kind, value = packed
    if kind == TENSOR:
        return tensors[value]
    if kind == CACHE:
        return cache
    if kind == SEQUENCE:
        return tuple(unpack(part, tensors, cache) for part in value)
    return {name: unpack(part, tensors, cache) for name, part in value.items()} if kind == MAPPING else value


def numbers_in(packed: Any) -> set[int]:
    """Return the numbers of the tensors in packed arguments."""
    kind, value = packed
    if kind == TENSOR:
        return {value}
    parts = value if kind == SEQUENCE else value.values() if kind == MAPPING else ()
    return set().union(*map(numbers_in, parts))


class Leader:
    """Calls layers on all ranks."""

    def __init__(self, ranks: Ranks, group: RankGroup, anatomy: Anatomy) -> None:
        self._ranks, self._group, self._anatomy = ranks, group, anatomy
        self._axes: Mapping[TapKey, int | None] = {}
        self._known = KnownTensors()
        self._rows = WholeRows(group, self._send)
        self._taps: dict[int, list[Tap]] = {}
        self._inside = False
        self._asked: LoggedRequest | None = None  # as the ranks know it
        for number, (layer, form) in enumerate(zip(anatomy.layers, anatomy.forms, strict=True)):
            layer.forward = self._led(number, layer, form)

    def gather_along(self, axes: Mapping[TapKey, int | None]) -> None:
        """Gather the values at these taps from now on, and at no others: each along the axis divided among the ranks,
        None where each has the whole."""
        self._axes = axes

    def total(self, part: Tensor) -> None:
        """Replace rank 0's part of a sum by the sum over all ranks."""
        if not self._inside:
            raise UsageError("A layer of a model that --tensor-parallel splits runs as a whole, on all ranks at once.")
        self._send(orders.GoOn())
        self._group.sum(part)

    @contextmanager
    def catch(self, taps: Iterable[Tap], on_value: OnValue) -> Iterator[None]:
        """Call `on_value` wherever a tap is reached, as `taps.catch` does, with the value that one device would have.
        Raises UsageError for a tap whose value the ranks cannot gather."""
        taps = list(taps)
        before, self._taps = self._taps, self._by_layer(taps)
        try:
            with catch(taps, lambda tap, raw: self._met(tap, raw, on_value)):
                yield
        finally:
            self._taps = before

    def _by_layer(self, taps: Sequence[Tap]) -> dict[int, list[Tap]]:
        found: dict[int, list[Tap]] = {}
        for tap in taps:
            if tap.boundary is not None or not 0 <= tap.stage < len(self._anatomy.layers):
                continue
            if key_of(tap) not in self._axes:
                raise UsageError(f"{tap.site} cannot be met on a split model: load it without --tensor-parallel.")
            found.setdefault(tap.stage, []).append(tap)
        return found

    def _led(self, number: int, layer: nn.Module, form: LayerForm) -> Callable[..., Any]:
        run = layer.forward

        def led(*args: Any, **kwargs: Any) -> Any:
            cache = next((one for one in (*args, *kwargs.values()) if isinstance(one, Cache)), None)
            output = self._begin(number, args, kwargs)
            self._inside = True
            try:
                with self._rows.of(cache):
                    returned = run(*args, **kwargs)
            except BaseException as error:
                self._leave(error)
                raise
            finally:
                self._inside = False
            self._known.know(output, form.unwrap(returned))
            return returned

        return led

    def _begin(self, number: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
        """Order the ranks to run a layer. Return the number of the hidden state that it returns."""
        packed, sent = self._known.pack(args, kwargs)
        raw, output = [orders.as_bytes(tensor) for _, tensor in sent], self._known.number()
        places = tuple(self._place(tap) for tap in self._taps.get(number, ()))
        forms = tuple(form for form, _ in sent)
        self._name_request()
        self._send(orders.RunLayer(layer=number, arguments=packed, sent=forms, places=places, output=output))
        for one in raw:
            self._group.send(one)
        self._known.were_sent()
        return output

    def _name_request(self) -> None:
        """Tell the ranks the request of the following layers, where it has changed."""
        asked = present()
        if asked is not self._asked:
            self._send(orders.WorkOn(asked=asked))
            self._asked = asked

    def _leave(self, error: BaseException) -> None:
        """Make the ranks leave the layer too."""
        if not isinstance(error, RankLost):
            self._send(orders.LeaveLayer())

    def _place(self, tap: Tap) -> orders.TapPlace:
        assert tap.module is not None
        return orders.TapPlace(
            site=str(tap.site.whole()),
            kind=tap.kind,
            module=self._anatomy.modules_found.path_of(tap.module),
            key=tap.key,
            ordinal=tap.ordinal,
            shared=tap.within is not None,
            in_place=tap.in_place,
            along=self._axes[key_of(tap)],
        )

    def _met(self, tap: Tap, raw: Tensor, on_value: OnValue) -> Tensor | None:
        if not self._inside:
            return on_value(tap, raw)
        along, number = self._axes[key_of(tap)], self._taps[tap.stage].index(tap)
        whole = self._whole(raw, along, lambda: self._send(orders.MeetTap(number=number)))
        changed = on_value(tap, whole)
        if changed is None or changed is whole:
            self._send(orders.KeepValue())
            return None
        self._send_in_place_of(changed)
        return changed if along is None else self._group.own(changed, along).contiguous()

    def _whole(self, raw: Tensor, along: int | None, begin: Callable[[], None]) -> Tensor:
        if along is not None:
            return self._group.gathered(raw, along, begin)
        begin()
        return raw

    def _send_in_place_of(self, changed: Tensor) -> None:
        raw = orders.as_bytes(changed)
        self._send(orders.ReplaceValue(form=orders.form_of(0, changed)))
        self._group.send(raw)

    def _send(self, message: orders.FromLeader) -> None:
        self._ranks.send(message)
