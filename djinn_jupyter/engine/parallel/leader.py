"""Rank 0's side of a split model: it runs the pass as on one device, and has the other ranks run each layer with it.

The engine above knows one model. What is decided there (a halt, a yield, an edit, an error, memory that ran out) leaves
or changes a layer on rank 0, and is told to the others before their next collective.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn
from transformers import Cache

from djinn_jupyter.engine.log.logged import LoggedRequest, present
from djinn_jupyter.engine.model.discovery.model_map import Anatomy
from djinn_jupyter.engine.model.hooks.call_forms import LayerForm
from djinn_jupyter.engine.model.hooks.taps import OnValue, Tap, catch
from djinn_jupyter.engine.parallel.arguments import KnownTensors
from djinn_jupyter.engine.parallel.group import RankGroup, as_bytes, form_of
from djinn_jupyter.engine.parallel.messages import (
    FromLeader,
    GoOn,
    KeepValue,
    LeaveLayer,
    MeetTap,
    ReplaceValue,
    RunLayer,
    TapPlace,
    WorkOn,
)
from djinn_jupyter.engine.parallel.places import TapKey, key_of
from djinn_jupyter.engine.parallel.ranks import RankLost, Ranks
from djinn_jupyter.engine.parallel.rows import WholeRows
from djinn_jupyter.errors import UsageError


class Leader:
    """Calls layers on all ranks."""

    def __init__(self, ranks: Ranks, group: RankGroup, anatomy: Anatomy) -> None:
        self._ranks, self._group, self._anatomy = ranks, group, anatomy
        self._axes: Mapping[TapKey, int | None] = {}
        self._known = KnownTensors()
        self._rows = WholeRows(group, self._tell)
        self._taps: dict[int, list[Tap]] = {}
        self._inside = False
        self._asked: LoggedRequest | None = None  # as the ranks know it
        for number, (layer, form) in enumerate(zip(anatomy.layers, anatomy.forms, strict=True)):
            layer.forward = self._led(number, layer, form)

    def gather_along(self, axes: Mapping[TapKey, int | None]) -> None:
        """Gather the values at these taps from now on, and at no others: each along the axis of which the ranks have
        parts, None where each has the whole."""
        self._axes = axes

    def total(self, part: Tensor) -> None:
        """Replace rank 0's part of a sum by the sum over all ranks."""
        if not self._inside:
            raise UsageError("A layer of a model that --tensor-parallel splits runs as a whole, on all ranks at once.")
        self._tell(GoOn())
        self._group.sum(part)

    @contextmanager
    def catch(self, taps: Iterable[Tap], on_value: OnValue) -> Iterator[None]:
        """Call `on_value` wherever a tap is met, as `taps.catch` does, with the value that one device would have.
        Raises UsageError for a tap whose value the ranks cannot put together."""
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

    # --- a layer ---------------------------------------------------------------------------------------------------

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
        """Tell the ranks to run a layer. Return the number under which they will know the hidden state it returns."""
        packed, sent = self._known.pack(args, kwargs)
        raw, output = [as_bytes(tensor) for _, tensor in sent], self._known.number()
        places = tuple(self._place(tap) for tap in self._taps.get(number, ()))
        forms = tuple(form for form, _ in sent)
        self._name_request()
        self._tell(RunLayer(layer=number, arguments=packed, sent=forms, places=places, output=output))
        for one in raw:
            self._group.send(one)
        self._known.were_sent()
        return output

    def _name_request(self) -> None:
        """Tell the ranks whose layers come next, where it is another request than before."""
        asked = present()
        if asked is not self._asked:
            self._tell(WorkOn(asked=asked))
            self._asked = asked

    def _leave(self, error: BaseException) -> None:
        """Have the ranks leave the layer too."""
        if not isinstance(error, RankLost):
            self._tell(LeaveLayer())

    # --- a tap -----------------------------------------------------------------------------------------------------

    def _place(self, tap: Tap) -> TapPlace:
        assert tap.module is not None
        return TapPlace(
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
        whole = self._whole(raw, along, lambda: self._tell(MeetTap(number=number)))
        changed = on_value(tap, whole)
        if changed is None or changed is whole:
            self._tell(KeepValue())
            return None
        self._send_in_place_of(changed)
        return changed if along is None else self._group.own(changed, along).contiguous()

    def _whole(self, raw: Tensor, along: int | None, begin: Callable[[], None]) -> Tensor:
        if along is not None:
            return self._group.gathered(raw, along, begin)
        begin()
        return raw

    def _send_in_place_of(self, changed: Tensor) -> None:
        raw = as_bytes(changed)
        self._tell(ReplaceValue(form=form_of(0, changed)))
        self._group.send(raw)

    def _tell(self, message: FromLeader) -> None:
        self._ranks.tell(message)
