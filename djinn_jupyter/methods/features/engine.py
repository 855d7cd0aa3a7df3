"""A feature's decoder: its product with the unembedding, and its cosines with the decoders of other features; and
features of rows that a client has.

Shapes: F features of a module, D of the residual, O of what is written, V tokens of the vocabulary, n rows at a time.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import Final

import msgspec
import torch
from msgspec import UNSET
from torch import Tensor

from djinn_jupyter.engine.loop.mailbox import Holder
from djinn_jupyter.engine.model.hooks.taps import Tap
from djinn_jupyter.engine.passes.forward import device_memory_for
from djinn_jupyter.engine.passes.weight_reader import WeightReader
from djinn_jupyter.engine.requests import bounds
from djinn_jupyter.engine.requests.handlers import MethodParts, handles
from djinn_jupyter.engine.session import queries
from djinn_jupyter.engine.session.residence import Blocked, Steps
from djinn_jupyter.engine.session.run import publish_progress
from djinn_jupyter.engine.session.runtime import Runtime
from djinn_jupyter.engine.session.session import Session
from djinn_jupyter.engine.system.arrays import to_array, to_tensor
from djinn_jupyter.errors import UnknownSite, UsageError
from djinn_jupyter.methods.direct.engine.handlers import RowObserver, require_whole, watched
from djinn_jupyter.methods.features.request import (
    EncodeFeatures,
    FeatureRead,
    FeaturesEncoded,
    LikeFeature,
    ReadFeature,
    WrittenToken,
)
from djinn_jupyter.modules.engine.added import FLOATING, AddedModule, write_site
from djinn_jupyter.modules.engine.arithmetic import Dictionary
from djinn_jupyter.modules.engine.feature_layout import FeatureLayout, HeldModule
from djinn_jupyter.wire.modules import ModuleIdentity
from djinn_jupyter.wire.sites import Site

ROWS: Final = 4096  # of a decoder that are fp32 at a time
ENCODED: Final = 2**24  # features that are computed at a time
PROBE: Final = 4  # tokens of the pass that shows whether the residual is a sum
RESIDUALS: Final = ("resid_pre", "resid_mid", "resid_post")
ADDED: Final = ("attn_out", "mlp_out", "attn_out_post", "mlp_out_post")
ONE: Final = "A page is of one feature of an SAE or a transcoder, such as sae.4[17]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoder:
    """The decoder of a module for one layer, the feature `unit`, and the point that it is written to, or the reason why
    it is not written back."""

    rows_FO: Tensor
    unit: int
    layer: int
    written: Tap | str
    length: float = 1.0  # by which the feature is divided before it is written

    @property
    def direction_O(self) -> Tensor:
        """The vector that a unit of the feature writes, fp32."""
        return self.rows_FO[self.unit].float() / self.length


def decoder_of(runtime: Runtime, held: HeldModule, unit: int, layer: int | None) -> Decoder:
    """Return the decoder of a feature for `layer`, by default the layer of its module. Raises UsageError for a layer
    that it is not written to."""
    module, dictionary = AddedModule(held), held.present
    assert isinstance(dictionary, Dictionary)
    later = () if dictionary.later_LFO is None else tuple(dictionary.later_LFO)
    place = 0 if layer is None else layer - module.layer
    if not 0 <= place <= len(later):
        last = f" to {module.layer + len(later)}" if later else ""
        raise UsageError(f"{module.site}[{unit}] is written to layer {module.layer}{last}, and not to layer {layer}.")
    written = module.written(runtime.forward.anatomy)
    if place and isinstance(written, Tap):
        written = runtime.resolve(write_site(held.identity, runtime.forward.anatomy, module.layer + place))
    return Decoder(
        rows_FO=later[place - 1] if place else dictionary.decoder_FO,
        unit=unit,
        layer=module.layer + place,
        written=written,
        length=1.0 if dictionary.length_F is None else float(dictionary.length_F[unit]),
    )


@torch.inference_mode()
def cosines(decoder: Decoder) -> Iterator[Tensor]:
    """Yield the cosines of a feature's decoder row with all rows, fp32 [n], NaN for rows of zeros."""
    row_O = decoder.rows_FO[decoder.unit].float()
    for rows_nO in decoder.rows_FO.split(ROWS):
        wide_nO = rows_nO.float()
        yield (wide_nO @ row_O) / (wide_nO.norm(dim=1) * row_O.norm())


def largest(values: Tensor, count: int) -> list[tuple[int, float]]:
    """Return the indices and the values of the `count` largest numbers, the largest first; NaN is left out."""
    found = values.nan_to_num(nan=-torch.inf).topk(min(count, len(values)))
    pairs = zip(found.indices.tolist(), found.values.tolist(), strict=True)
    return [(index, value) for index, value in pairs if value > -torch.inf]


def require_added(runtime: Runtime, written: Tap | str) -> Tap:
    """Return the point that is written. Raises UnknownSite where its value is not added to the residual as it is."""
    if isinstance(written, str):
        raise UnknownSite(f"It is not written back: {written}.")
    point, layer = written.site.point, written.site.layer
    if point not in (*RESIDUALS, *ADDED):
        raise UnknownSite(f"It is written to {written.site}, which is not added to the residual.")
    if isinstance(runtime.forward.anatomy.taps.get((f"{point}_post", layer)), Tap):
        raise UnknownSite(f"It is written to {written.site}, and a norm stands between that and the residual.")
    return written


@dataclass(frozen=True, slots=True)
class Written:
    """The tokens that a feature promotes and suppresses most, and whether the final norm is folded in."""

    promoted: tuple[WrittenToken, ...] = ()
    suppressed: tuple[WrittenToken, ...] = ()
    folded: bool = False


def handlers(parts: MethodParts) -> tuple[FeatureRequests]:
    """Return the handlers of this method's requests."""
    return (FeatureRequests(parts),)


class FeatureRequests:
    def __init__(self, parts: MethodParts) -> None:
        self._parts, self._runtime, self._workspace = parts, parts.runtime, parts.workspace("features")
        self._weights = WeightReader(parts.runtime.forward)

    @handles(ReadFeature)
    def read_feature(self, request: ReadFeature, session: Session, holder: Holder) -> Steps[FeatureRead]:
        bounds.require_empty(session, "read a feature", "engine.feature")
        site = self._runtime.site(request.site)
        tap, held = self._module_at(session, site)
        if site.selector is None or len(site.selector) != 1:
            raise UsageError(f"{ONE}; {site} is not one.")
        layer = None if request.layer is UNSET else request.layer
        decoder = decoder_of(self._runtime.of(session), held, site.selector[0], layer)
        return self._steps(request, session, tap, held, decoder)

    def _module_at(self, session: Session, site: Site) -> tuple[Tap, HeldModule]:
        """Return the tap of a site, and its module. Raises UsageError where that has no decoder."""
        tap = self._runtime.of(session).resolve(site)
        if not isinstance(tap.layout, FeatureLayout) or not isinstance(tap.layout.module.present, Dictionary):
            kind = f"a {tap.added.form.kind.replace('_', ' ')}" if tap.added else "the model's own"
            raise UsageError(f"{ONE}; {site} is {kind}.")
        return tap, tap.layout.module

    def _steps(
        self, request: ReadFeature, session: Session, tap: Tap, held: HeldModule, decoder: Decoder
    ) -> Steps[FeatureRead]:
        own, written, unit = held.identity, decoder.written, decoder.unit
        with device_memory_for("the decoder of a module", "Close sessions."):
            like = yield from self._like(session, decoder, request.top)
            found, unwritten = Written(), ""
            try:
                yield from self._require_sum(session, require_added(self._runtime, written))
                found = yield from self._written(decoder.direction_O, request.top)
            except UnknownSite as error:
                unwritten = str(error)
        return FeatureRead(
            site=str(Site(point=own.name, layer=tap.site.layer, selector=(unit,))),
            unit=unit,
            kind=own.form.kind,
            features=own.features,
            at=own.at,
            layer=decoder.layer,
            writes=str(written.site) if isinstance(written, Tap) else None,
            like=like,
            promoted=found.promoted,
            suppressed=found.suppressed,
            made=self._parts.circumstances(session, taps=[tap]),
            folded=found.folded,
            unwritten=unwritten,
            notes=_notes(own),
        )

    def _like(self, session: Session, decoder: Decoder, count: int) -> Generator[None, None, tuple[LikeFeature, ...]]:
        """Return the other features with the largest cosines."""
        found: list[Tensor] = []
        for part in cosines(decoder):
            found.append(part.to("cpu"))
            done, total = sum(map(len, found)), len(decoder.rows_FO)
            publish_progress(self._runtime, session, "comparing decoders", done, total, "features")
            yield None
        best = [one for one in largest(torch.cat(found), count + 1) if one[0] != decoder.unit][:count]
        return tuple(LikeFeature(feature=feature, cosine=cosine) for feature, cosine in best)

    def _written(self, direction_D: Tensor, top: int) -> Generator[None, None, Written]:
        """Return the tokens that a direction of the residual promotes and suppresses most. UnknownSite."""
        parts, folded = self._weights.added_to_logits(direction_D)
        found: list[Tensor] = []
        for part in parts:
            found.append(part.to("cpu"))
            yield None
        logits_V = torch.cat(found)
        return Written(self._tokens(logits_V, 1, top), self._tokens(logits_V, -1, top), folded)

    def _tokens(self, logits_V: Tensor, sign: int, top: int) -> tuple[WrittenToken, ...]:
        text_of = self._runtime.tokenizer.text_of
        return tuple(
            WrittenToken(token=token, text=text_of(token), logit=sign * value)
            for token, value in largest(sign * logits_V, top)
        )

    def _require_sum(self, session: Session, written: Tap) -> Generator[Blocked | None, None, None]:
        """Raise UnknownSite where the layers behind a point do not only add to the residual, as a pass over some tokens
        shows."""
        runtime, layers = self._runtime.of(session), self._runtime.forward.layers
        layer = (written.site.layer or 0) + (written.site.point == "resid_post")
        if layer == layers:
            return
        drawn = torch.randint(runtime.description.vocab_size, (PROBE,), generator=torch.Generator().manual_seed(1))
        ends = (Site(point="resid_pre", layer=layer), Site(point="resid_post", layer=layers - 1))
        first, last = (RowObserver(tap=runtime.resolve(end), row=PROBE - 1, point=end.point) for end in ends)
        each = (watched(runtime, at, PROBE - 1, heads=False, neurons=False) for at in range(layer, layers))
        seen = [first, *(one for of_layer in each for one in of_layer)]
        yield from queries.run_line(runtime, session, tuple(drawn.tolist()), observers=(*seen, last))
        for one in (*seen, last):
            one.bring(runtime.forward.device)
        require_whole(last.values[0], seen)

    @handles(EncodeFeatures)
    def encode(self, request: EncodeFeatures, session: Session, holder: Holder) -> Steps[FeaturesEncoded]:
        bounds.require_empty(session, "encode rows", "engine.feature")
        site = msgspec.structs.replace(self._runtime.site(request.site), selector=request.units)
        _, held = self._module_at(session, site)
        shape, inputs = request.values.shape, held.identity.inputs
        if len(shape) < 2 or math.prod(shape[1:]) != inputs or request.values.dtype not in FLOATING:
            raise UsageError(
                f"{site.whole()} reads rows of {inputs} floating numbers, and the values are {list(shape)} of "
                f"{request.values.dtype}."
            )
        bounds.Room().take(shape[0] * len(request.units) * torch.float32.itemsize)
        return self._encoded(request, session, held)

    def _encoded(self, request: EncodeFeatures, session: Session, held: HeldModule) -> Steps[FeaturesEncoded]:
        home = self._runtime.forward.home_of(self._runtime.of(session).resolve(AddedModule(held).at))
        given_ND = to_tensor(request.values).flatten(1)
        wide = max(held.identity.features, held.identity.inputs)
        rows = max(1, ENCODED // wide)
        found = [torch.empty(0, len(request.units))]
        with (
            device_memory_for("the features of these rows", "Close sessions."),
            self._workspace.opened(session) as room,
        ):
            yield from room.take(8 * min(rows, len(given_ND)) * wide)
            for part_nD in given_ND.split(rows):
                found.append(_features(held, part_nD.to(home), request.units))
                yield None
        return FeaturesEncoded(values=to_array(torch.cat(found)))


@torch.inference_mode()
def _features(held: HeldModule, rows_nD: Tensor, units: tuple[int, ...]) -> Tensor:
    return held.present.reading(rows_nD)(units).float().to("cpu")


def _notes(own: ModuleIdentity) -> tuple[str, ...]:
    if own.form.kind != "sae" or own.form.normalization == "none":
        return ()
    return (
        f"The module normalizes its input ({own.form.normalization}): a unit of the feature writes as much times the "
        "scale that this undoes.",
    )
