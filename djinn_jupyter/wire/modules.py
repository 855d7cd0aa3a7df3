"""The form of an added module, its tensors, and its description. A form is data only, never code."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from msgspec import Meta

from djinn_jupyter.wire.arrays import Array
from djinn_jupyter.wire.base import Cleared, Frozen, ReplyBase
from djinn_jupyter.wire.request_base import RequestBase, SessionRequest, Spelling
from djinn_jupyter.wire.sessions import Described

ModuleKind = Literal["sae", "transcoder", "cross_layer_transcoder", "probe", "tuned_lens"]
Activation = Literal["relu", "jumprelu", "topk", "gated"]
Normalization = Literal["none", "layer_norm", "constant_norm_rescale"]
ModuleDtype = Literal["float32", "float16", "bfloat16"]
MOST_TENSORS: Final = 16
TRANSCODERS: Final = ("transcoder", "cross_layer_transcoder")
ModuleName = Annotated[str, Meta(min_length=1, max_length=64)]
Digest = Annotated[str, Meta(min_length=1, max_length=128)]
FolderPath = Annotated[str, Meta(min_length=1, max_length=4096)]


class ModuleForm(Frozen, frozen=True):
    """The form of a module, computed in `dtype`. An `sae` or `transcoder` encodes x as act(norm(x) @ W_enc + b_enc),
    with `subtracts_decoder_bias` of x - b_dec, and decodes to f @ W_dec + b_dec; `by_decoder_norm` measures features by
    the length of their decoder rows. A `centered` module reads x minus its mean over the features; with `norm_folded` a
    norm's output before its weight and bias; with `value_biases_folded` values of attention, or means of them, without
    their biases. A transcoder with `skip` adds x @ W_skip.T. A `cross_layer_transcoder` is one layer of it: W_dec [F,
    layers, D] writes to the MLPs from its own layer on; b_dec and with `skip` x @ W_skip, not transposed, write to its
    own layer's MLP. With `encoder_rows` W_enc is [F, D]. A `probe` is x @ weight.T + bias, a `tuned_lens` adds that to
    x. `k` belongs to `topk`. `trained_at` is the place that its files name, `written_at` the place to which a
    transcoder writes according to them."""

    kind: ModuleKind
    dtype: ModuleDtype
    activation: Activation = "relu"
    k: Annotated[int, Meta(ge=1, le=2**31)] | None = None
    subtracts_decoder_bias: bool = False
    normalization: Normalization = "none"
    by_decoder_norm: bool = False
    skip: bool = False
    centered: bool = False
    norm_folded: bool = False
    value_biases_folded: bool = False
    encoder_rows: bool = False
    trained_at: Annotated[str, Meta(max_length=1024)] | None = None
    written_at: Annotated[str, Meta(max_length=1024)] | None = None


class NamedTensor(Frozen, frozen=True):
    """A tensor of a module's file."""

    name: Annotated[str, Meta(min_length=1, max_length=256)]
    values: Array


class ModuleIdentity(Frozen, frozen=True):
    """An added module without its tensors, which come from the files in `folder`, with that `digest`. `at` is the point
    that it reads; `inputs` and `features` are the widths before and after it."""

    name: ModuleName
    at: Annotated[str, Meta(min_length=1, max_length=1024)]
    form: ModuleForm
    inputs: int
    features: int
    folder: FolderPath
    digest: Digest
    error_term: bool
    bytes_held: int


class AddedModuleDescription(Frozen, frozen=True):
    """An added module: `site` is its own site (`sae.4`), `at` the point that it reads. `inputs` and `features` are the
    widths before and after it. An edit of its values changes the point that it `writes`, for a cross-layer transcoder
    also the points of later layers; `why_not_edited` is None where they can be edited. `missing`: why it cannot be
    computed now. `note`: how its files disagree with `at`, or with the engine's model."""

    name: str
    site: str
    at: str
    kind: ModuleKind
    activation: str
    inputs: int
    features: int
    folder: str
    digest: str
    bytes_held: int
    error_term: bool
    writes: str | None = None
    why_not_edited: str | None = None
    missing: str | None = None
    note: str | None = None


# Low-rank adapters of a model's linear modules (LoRA): their requests, replies and description. Tensors and factors
# only, never code.

MOST_ADAPTED: Final = 2000  # a message has 4,096 frames, and each module has two
AdapterName = ModuleName


class AdaptedModule(Frozen, frozen=True):
    """A linear module that an adapter changes: `factor` times up @ down @ x is added to its output. `down` is [rank,
    inputs], `up` [outputs, rank]."""

    path: Annotated[str, Meta(min_length=1, max_length=1024)]
    factor: float
    down: Array
    up: Array


class AdapterIdentity(Frozen, frozen=True):
    """An adapter without its tensors, which come from the files in `folder`, with that `digest`."""

    name: AdapterName
    folder: FolderPath
    digest: Digest


class AdapterDescription(Frozen, frozen=True):
    """An adapter: the number of `modules` that it changes, and the last words of their paths (`targets`). `sessions`
    use it. `missing`: why it cannot be used now. `note`: other statements of its files, shown when it is added."""

    name: str
    folder: str
    digest: str
    modules: int
    targets: tuple[str, ...]
    bytes_held: int
    sessions: tuple[str, ...] = ()
    missing: str | None = None
    note: str | None = None


class RemoveAdapter(RequestBase[Cleared], browser="asks"):
    """Remove an adapter that no session uses."""

    name: AdapterName


class SetAdapter(SessionRequest[Described], browser="asks"):
    """Set the adapter of a session without tokens, None for the model alone."""

    adapter: AdapterName | None


class AdapterAdded(ReplyBase):
    """`existed`: it was there already, with the same files."""

    adapter: AdapterDescription
    existed: bool = False


class AddAdapter(SessionRequest[AdapterAdded], changes=False, whole_layers=True):
    """Add an adapter from the files in `folder`, a path of the client's, whose digest is `digest`. The session is
    empty: only its memory is used."""

    name: AdapterName
    modules: Annotated[tuple[AdaptedModule, ...], Meta(min_length=1, max_length=MOST_ADAPTED)]
    folder: FolderPath
    digest: Digest


class Adapters(ReplyBase):
    """The adapters that the caller has added, by name."""

    adapters: tuple[AdapterDescription, ...]


class ListAdapters(RequestBase[Adapters], browser="asks", resent="anew"): ...


class RemoveModule(RequestBase[Cleared], browser="asks"):
    """Remove the module of that name: at `layer`, or everywhere."""

    name: ModuleName
    layer: Annotated[int, Meta(ge=0, le=2**31)] | None = None


class ModuleAdded(ReplyBase):
    """`existed`: it was there already, with the same files."""

    module: AddedModuleDescription
    existed: bool = False


class AddModule(SessionRequest[ModuleAdded], changes=False):
    """Add a module named `name` that reads the point `at`, such as `resid_post.4`; its site is then `name.4`. The
    tensors come from the files in `folder`, a path of the client's, whose digest is `digest`. With `error_term` an edit
    of its values keeps the reconstruction error. The session is empty: only its memory is used."""

    name: ModuleName
    at: Spelling
    form: ModuleForm
    tensors: Annotated[tuple[NamedTensor, ...], Meta(max_length=MOST_TENSORS)]
    folder: FolderPath
    digest: Digest
    error_term: bool = True


class AddedModules(ReplyBase):
    """The modules that the caller has added, in order of their sites."""

    modules: tuple[AddedModuleDescription, ...]


class ListAddedModules(RequestBase[AddedModules], browser="asks", resent="anew"): ...
