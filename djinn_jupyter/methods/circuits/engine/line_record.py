"""A line as it runs by itself: the residual between layers and before each MLP, and what every writer adds to it.

Shapes: W writers, S positions, D features.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import torch
from torch import Tensor

from djinn_jupyter.engine.forward.forward import Forward
from djinn_jupyter.engine.model.hooks.gates import Leave
from djinn_jupyter.engine.model.hooks.taps import Tap, catch
from djinn_jupyter.methods.attribution.engine.line import LayerArguments, recording
from djinn_jupyter.methods.circuits.engine.edges import LayerEnds, wide
from djinn_jupyter.wire.sites import Site

Put = Callable[[Tensor], Tensor]


@dataclass(slots=True, kw_only=True, eq=False)
class Called:
    """A layer that was called: the hidden state behind it, None where it was left, and the raw values `seen`."""

    after_1SD: Tensor | None = None
    seen: dict[Site, Tensor] = field(default_factory=dict)


def called(
    forward: Forward,
    arguments: LayerArguments,
    layer: int,
    hidden_SD: Tensor,
    *,
    puts: Mapping[Tap, Put],
    wanted: Sequence[Tap],
    leave: bool = False,
) -> Called:
    """Run one layer from `hidden_SD` with other values put at taps; note those met at the taps `wanted`, and with
    `leave` go no further than the last of them."""
    found, form = Called(), forward.anatomy.forms[layer]
    sites = {tap.site for tap in wanted}

    def met(tap: Tap, raw: Tensor) -> Tensor | None:
        changed = puts[tap](raw) if tap in puts else None
        if tap.site in sites:
            found.seen[tap.site] = (raw if changed is None else changed).clone()
            if leave and len(found.seen) == len(sites):
                raise Leave
        return changed

    taps = {tap.site: tap for tap in (*puts, *wanted)}
    with recording(False), suppress(Leave):
        args, kwargs = form.put(*arguments.of_layer[layer], hidden_SD[None].clone())
        with forward.calling(), catch(taps.values(), met):
            found.after_1SD = form.unwrap(forward.anatomy.layers[layer](*args, **kwargs))
    return found


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LineRecord:
    """`entries` are the residual before each layer and behind the last; `mids` that before each MLP, None where that
    reads the layer's entry; `written_WSD` what each writer adds."""

    arguments: LayerArguments
    entries: Sequence[Tensor]
    mids: Sequence[Tensor | None]
    written_WSD: Tensor

    @classmethod
    def of(
        cls, forward: Forward, layers: Sequence[LayerEnds], tokens: tuple[int, ...]
    ) -> Generator[None, None, LineRecord]:
        """Run a line, a layer a step."""
        arguments = LayerArguments.of(forward, tokens)
        hidden = arguments.entry_1SD[0]
        entries, mids, written = [hidden], list[Tensor | None](), [wide(hidden)[None]]
        for layer, ends in enumerate(layers):
            wanted = [ends.z, ends.mlp_out, *([] if ends.mid is None else [ends.mid])]
            ran = called(forward, arguments, layer, hidden, puts={}, wanted=wanted)
            assert ran.after_1SD is not None
            with recording(False), forward.calling():
                written.append(ends.added(ran.seen[ends.z.site], ran.seen[ends.mlp_out.site]))
            mids.append(None if ends.mid is None else ends.mid.read(ran.seen[ends.mid.site]))
            hidden = ran.after_1SD[0]
            entries.append(hidden)
            yield
        with recording(False):
            return cls(arguments=arguments, entries=entries, mids=mids, written_WSD=torch.cat(written))
