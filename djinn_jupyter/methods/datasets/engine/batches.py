"""Many prompts in one pass, through the model's own layers, section by section and no further than the last site.

Shorter prompts are padded at their ends: a causal model's rows never see later ones. The arguments of the layers come
from the model's own forward for the whole batch. At the first collection a test on the model itself shows whether its
rows stay the same in a batch.

Shapes: B prompts of a batch, T tokens of its longest, R rows wanted of all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from djinn_jupyter.engine.model.hooks.gates import Arguments
from djinn_jupyter.engine.model.hooks.layout import PositionLayout
from djinn_jupyter.engine.model.hooks.taps import Tap, catch
from djinn_jupyter.engine.model.loading.reasons import first_line
from djinn_jupyter.engine.passes import columns, edits, sections, shared_cache
from djinn_jupyter.engine.residency.workspace import Reservation
from djinn_jupyter.engine.session.residence import Blocked
from djinn_jupyter.engine.session.runtime import Runtime
from djinn_jupyter.engine.system.device import out_of_memory, require_alive, to_home
from djinn_jupyter.errors import OverQuota, SlabFull
from djinn_jupyter.methods.datasets.engine.places import CollectedSites
from djinn_jupyter.modules.engine.feature_layout import FeatureLayout
from djinn_jupyter.wire.sites import Site

TRIED: Final = (9, 4, 6)  # lengths
HELD_BYTES: Final = 96  # a feature of a row, while a layer's step runs: the layer's input, and its modules' outputs
Prompts = Sequence[tuple[int, ...]]
Rows = Sequence[list[int] | None]
Alone = Callable[[tuple[int, ...], CollectedSites], Generator[Blocked | None, None, Mapping[str, Tensor]]]


class NotBatched(RuntimeError):
    """A value has another layout in a batch's pass than in one prompt's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedRows:
    """The wanted rows of a batch: row i is position `positions[i]` of prompt `lines[i]`."""

    prompts: int
    length: int
    lines: Tensor
    positions: Tensor

    @classmethod
    def of(cls, prompts: Prompts, rows: Rows, device: torch.device) -> WantedRows:
        chosen = [list(range(len(t))) if r is None else r for t, r in zip(prompts, rows, strict=True)]
        lines = [line for line, here in enumerate(chosen) for _ in here]
        return cls(
            prompts=len(prompts),
            length=max(map(len, prompts)),
            lines=torch.tensor(lines, device=device),
            positions=torch.tensor([row for here in chosen for row in here], device=device),
        )

    def take(self, tap: Tap, raw: Tensor) -> Tensor:
        """Return the rows [R, ...] of a value in the pass of the batch, in the form of `tap.read`. NotBatched."""
        layout = tap.layout.point if isinstance(tap.layout, FeatureLayout) else tap.layout
        lines, positions = to_home(self.lines, raw.device), to_home(self.positions, raw.device)
        if not isinstance(layout, PositionLayout):
            raise NotBatched(f"{tap.site} has no axis of positions")
        if layout.batch is None:
            if raw.shape[layout.position] != self.prompts * self.length:
                raise NotBatched(f"{tap.site} has no row for each token")
            return tap.read(raw.index_select(layout.position, lines * self.length + positions))
        axes = (layout.batch, layout.position)
        if (raw.shape[axes[0]], raw.shape[axes[1]]) != (self.prompts, self.length):
            raise NotBatched(f"{tap.site} has no row for each token")
        rows = raw.movedim(axes, (0, 1))[lines, positions]
        return tap.read(rows[None].movedim((0, 1), axes))


class Batches:
    """Runs batches of one model."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime, self.forward = runtime, runtime.forward
        self.sections = sections.Sections(runtime.forward)
        self._tested = False
        self._why_not: str | None = None

    def why_not(self, alone: Alone, places: CollectedSites) -> Generator[Blocked | None, None, str | None]:
        """Return why these sites have to be read one prompt at a time here, None if they need not."""
        if any(tap.boundary is None and tap.stage >= self.forward.layers for tap in places.taps.values()):
            return "a site behind the last layer is read in a pass of its own"
        if not self._tested:
            self._why_not = shared_cache.why_not_batched(self.forward) or (yield from self._trial(alone))
            self._tested = True
        return self._why_not

    def of(self, prompts: Prompts) -> Iterator[list[int]]:
        """Yield the numbers of prompts that run together."""
        return columns.batches_of([len(tokens) for tokens in prompts], self.sections.tokens(), self.forward.frequencies)

    def held_bytes(self, rows: int) -> int:
        """Return an upper bound of the bytes of a pass over so many rows: those of the running step, and the outputs of
        a layer's steps before it."""
        return rows * self.forward.anatomy.hidden_size * HELD_BYTES + self.sections.kept_bytes(rows)

    def agree(self, one: Tensor, other: Tensor) -> bool:
        """Return whether the rows of both are equal within the rounding of this model."""
        return shared_cache.equal_but_for_rounding(one, other, self.forward.model.dtype)

    def run(
        self,
        prompts: Prompts,
        rows: Rows,
        places: CollectedSites,
        dtype: torch.dtype | None,
        *,
        spoilt: int | None = None,
    ) -> Iterator[dict[str, Tensor] | None]:
        """Yield None between two sections of layers, and at the end the rows [R, ...] of all prompts by site, on the
        host. The prompt `spoilt` is made NaN, for a trial. Raises NotBatched."""
        wanted = WantedRows.of(prompts, rows, self.forward.device)
        found: dict[str, Tensor] = {}

        def keep(tap: Tap, raw: Tensor) -> None:
            value = wanted.take(tap, raw)
            for site in sites[tap.site]:
                part = edits.take(value, None, site.selector)
                found[str(site)] = part.to(device="cpu", dtype=dtype or part.dtype)

        sites: dict[Site, list[Site]] = {}
        for site, tap in places.taps.items():
            sites.setdefault(tap.site, []).append(site)
        taps = list({tap.site: tap for tap in places.taps.values()}.values())
        for _ in self._layers(prompts, taps, keep, spoilt):
            yield None
        yield found

    @torch.inference_mode()
    def _begin(
        self, prompts: Prompts, taps: list[Tap], keep: Callable[[Tap, Tensor], None]
    ) -> tuple[list[Arguments], Tensor]:
        cache = shared_cache.SharedCache(self.forward.model.config, shared_cache.BaseRows({}), 0)
        with catch([tap for tap in taps if tap.stage < 0 and tap.boundary is None], keep):
            arguments = self.forward.batch_arguments(columns.filled(prompts), cache)
        return arguments, self.forward.anatomy.forms[0].take(*arguments[0])

    def _layers(
        self, prompts: Prompts, taps: list[Tap], keep: Callable[[Tap, Tensor], None], spoilt: int | None
    ) -> Iterator[None]:
        arguments, hidden = self._begin(prompts, taps, keep)
        if spoilt is not None:
            hidden = hidden.clone()
            hidden[spoilt] = torch.nan
        last = max(tap.boundary if tap.boundary is not None else tap.stage + 1 for tap in taps)
        for layer in range(last + 1):
            for tap in taps:
                if tap.boundary == layer:
                    keep(tap, hidden)
            if layer == last:
                return
            met = [tap for tap in taps if tap.stage == layer]
            hidden = yield from self._called(layer, arguments[layer], hidden, met, keep)
            require_alive(hidden.device)
            self.runtime.counters.count_layers(1)
            yield

    def _called(
        self, layer: int, arguments: Arguments, hidden: Tensor, taps: list[Tap], keep: Callable[[Tap, Tensor], None]
    ) -> Generator[None, None, Tensor]:
        inside = [tap for tap in taps if tap.boundary is None]
        return self.sections.run(layer, arguments, hidden, lambda: catch(inside, keep))

    def _trial(self, alone: Alone) -> Generator[Blocked | None, None, str | None]:
        """Compare prompts of several lengths, in batches with others (one of NaN), with passes of their own."""
        yield from self.sections.prove()
        size = self.runtime.description.vocab_size
        generator = torch.Generator().manual_seed(1)
        prompts = [tuple(torch.randint(size, (length,), generator=generator).tolist()) for length in TRIED]
        places = CollectedSites.of(self.runtime, (f"resid_post.{self.forward.layers - 1}",))
        exact = []
        for tokens in prompts:
            exact.append(next(iter((yield from alone(tokens, places)).values())))
        try:
            for order, spoilt in (((0, 1, 2), None), ((2, 1, 0), 2)):
                rows = self._last([prompts[n] for n in order], places, spoilt)
                yield None
                parts = rows.split([len(prompts[n]) for n in order])
                pairs = [(parts[at], exact[n]) for at, n in enumerate(order) if at != spoilt]
                if not all(self.agree(one, other) for one, other in pairs):
                    return "its layers give a prompt other values among others than alone"
        except shared_cache.REFUSALS as error:
            if out_of_memory(error):
                raise  # shows nothing about the family
            return f"its layers refuse several prompts ({first_line(error)})"
        return None

    def _last(self, prompts: Prompts, places: CollectedSites, spoilt: int | None) -> Tensor:
        *_, found = self.run(prompts, [None] * len(prompts), places, None, spoilt=spoilt)
        assert found is not None
        return next(iter(found.values()))


# Batches that fit into the budget: if one does not, the first half is tried, down to one prompt.


class FittingBatches:
    """All prompts once, a batch at a time. `beside` are the bytes that a batch takes besides its pass."""

    def __init__(self, batches: Batches, prompts: Prompts, room: Reservation, beside: int = 0) -> None:
        self._batches, self._prompts, self._room, self._beside = batches, prompts, room, beside
        self._left = batches.of(prompts)
        self._waiting = next(self._left, None)

    def take(self) -> Generator[Blocked | None, None, tuple[list[int], int] | None]:
        """Reserve the memory of the next batch, or of as many of its first prompts as fit. Return their numbers, and
        the bytes; None after the last. Raises SlabFull where not even one prompt fits."""
        waiting = self._waiting
        if waiting is None:
            return None
        count = len(waiting)
        while True:
            size = self._bytes_of(waiting[:count])
            try:
                yield from self._room.take(size)
            except (SlabFull, OverQuota):
                if count == 1:
                    raise
                count = (count + 1) // 2
            else:
                self._waiting = waiting[count:] or next(self._left, None)
                return waiting[:count], size

    def _bytes_of(self, batch: list[int]) -> int:
        rows = len(batch) * max(len(self._prompts[number]) for number in batch)
        return self._batches.held_bytes(rows) + self._beside
