"""The decoder of a feature (the tokens that it writes, the features like it), and its values at rows of a point."""

from __future__ import annotations

from typing import Annotated

from msgspec import UNSET, Meta, UnsetType

from djinn_jupyter.wire.arrays import Array
from djinn_jupyter.wire.base import Frozen, ReplyBase
from djinn_jupyter.wire.looks import Circumstances
from djinn_jupyter.wire.modules import ModuleKind
from djinn_jupyter.wire.request_base import SessionRequest, Spelling

Unit = Annotated[int, Meta(ge=0, le=2**31)]


class WrittenToken(Frozen, frozen=True):
    """A token, and what a unit of a feature adds to its logit."""

    token: int
    text: str
    logit: float


class LikeFeature(Frozen, frozen=True):
    """A feature of the same module, and the cosine of its decoder row with another's."""

    feature: int
    cosine: float


class FeatureRead(ReplyBase):
    """The feature `unit` of the module at `site`, which has so many `features` and reads `at`. It is written to the
    point `writes`, in `layer`; None where it is not written back. `like` are the features whose decoder rows for that
    layer have the largest cosines with its own, the largest first. `promoted` and `suppressed` are the tokens to whose
    logits it adds most and least, by way of the residual alone: the product of its decoder row with W_U, with the
    final norm `folded` in (its weight, and its mean where it subtracts one, but not its factor). They are empty where
    that is not defined, for the reason `unwritten`. `notes` are sentences on the unit."""

    site: str
    unit: int
    kind: ModuleKind
    features: int
    at: str
    layer: int
    writes: str | None
    like: tuple[LikeFeature, ...]
    promoted: tuple[WrittenToken, ...]
    suppressed: tuple[WrittenToken, ...]
    made: Circumstances
    folded: bool = False
    unwritten: str = ""
    notes: tuple[str, ...] = ()


class ReadFeature(SessionRequest[FeatureRead], changes=False, wakes_weights=True, whole_layers=True):
    """Read the decoder of a feature, such as sae.4[17]: `top` tokens that it promotes and suppresses most, and as many
    features like it. `layer` is the layer that a feature of a cross-layer transcoder is written to, by default its own.
    The session itself must be empty."""

    site: Spelling
    layer: Annotated[int, Meta(ge=0, le=2**31)] | UnsetType = UNSET
    top: Annotated[int, Meta(ge=1, le=100)] = 10


class FeaturesEncoded(ReplyBase):
    """The features of each row, fp32 [rows, units]."""

    values: Array


class EncodeFeatures(SessionRequest[FeaturesEncoded], changes=False):
    """Compute the features `units` of the module at `site` from `values` [rows, ...] of the point that it reads. The
    session itself must be empty."""

    site: Spelling
    units: Annotated[tuple[Unit, ...], Meta(min_length=1, max_length=101)]
    values: Array
