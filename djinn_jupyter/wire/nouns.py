"""The nouns that both sides speak of: models, sessions, breakpoints, rules, readings. Values only."""

from __future__ import annotations

from typing import Literal

from djinn_jupyter.settings import GivenSampling, check_rules
from djinn_jupyter.wire.arrays import Array
from djinn_jupyter.wire.base import Frozen, OwnName
from djinn_jupyter.wire.base import Progress as Progress
from djinn_jupyter.wire.base import SharedWith as SharedWith
from djinn_jupyter.wire.base import Tier as Tier
from djinn_jupyter.wire.base import Transfer as Transfer
from djinn_jupyter.wire.edits import PassesMeant as PassesMeant
from djinn_jupyter.wire.edits import RuleDescription as RuleDescription


class Holding(Frozen, frozen=True):
    """Bytes on the device of one kind of holder: `pages`, `working copies`, `stops and states`."""

    kind: str
    bytes_held: int


class BudgetStatistics(Frozen, frozen=True):
    """The memory that all sessions together may have on the device, and have. `bytes_overdrawn`: what is above the
    limit, while older stops and sessions leave for it; 0 unless something was made whose room was not foreseen."""

    bytes_limit: int
    bytes_taken: int
    bytes_overdrawn: int
    holdings: tuple[Holding, ...]


class ProcessMemory(Frozen, frozen=True):
    """The main memory of the engine's process, as the system reports it, beside the accounting. Unmeasured is None."""

    anonymous_bytes: int | None  # its own
    mapped_bytes: int | None  # parts of files, which the system takes back when it needs them
    accounted_bytes: int  # of its own, counted: weights that are no part of a file, sessions on the CPU, the tiers
    runtime_bytes: int | None  # Python and its libraries, before a model was loaded
    beyond_bytes: int | None  # the rest of its own, not counted by any part
    device_beyond_bytes: int | None  # what the allocator has of a GPU beyond weights and sessions


class PersonMemory(Frozen, frozen=True):
    """The memory that the sessions of one person hold, None for the engine's own user. A page or tensor that several
    sessions share counts once, for the person of the oldest of them. Working copies and free pages are no one's."""

    person: str | None
    device_bytes: int
    host_bytes: int  # copies of what is on the device too
    disk_bytes: int


class OwnerBudget(Frozen, frozen=True):
    """The most that one owner of sessions may have; None is no limit. `running` is in seconds of the last day."""

    device: int | None = None
    host: int | None = None
    disk: int | None = None
    sessions: int | None = None
    running: int | None = None


class GivenLimits(Frozen, frozen=True):
    """The limits that an engine was started with, in bytes, positions and seconds. None was left to the engine."""

    device_memory: int | None
    card_memory: int | None
    host_memory: int | None
    disk_memory: int | None
    page_positions: int | None
    idle_swap_seconds: float


class SlabStatistics(Frozen, frozen=True):
    pages: int
    pages_free: int
    pages_shared: int
    page_bytes: int
    bytes_allocated: int
    bytes_limit: int
    working_copies: int
    working_bytes: int


class TierStatistics(Frozen, frozen=True):
    """The accounting of the host or disk tier, in bytes; since the start `bytes_out` came to it, `bytes_in` went
    back."""

    tier: Tier
    pages: int
    bytes_used: int
    bytes_allocated: int
    bytes_limit: int
    bytes_out: int
    bytes_in: int


class Noun(Frozen): ...


SessionState = Literal["idle", "running", "paused", "closed"]
PauseReason = Literal["breakpoint", "step", "interrupt", "back", "fork", "quota"]
FinishReason = Literal["length", "eos", "stop_string", "context", "slab_full"]
Residency = Literal["resident", "storing", "host", "loading", "disk"]
Exactness = Literal["exact", "recomputed", "fast"]
ValueExactness = Literal[
    "exact", "recomputed", "fast", "re-run from the committed cache", "run ahead", "recomputed from q and k"
]
Mode = Literal["fast", "exact"]  # of a sweep, a collection or a run: some share passes, or each is alone
AttentionName = Literal["eager", "sdpa"]
Activity = Literal["busy", "idle", "focused", "blurred", "expected", "in_use", "gone"]


class Sampling(Noun, frozen=True):
    """The choice of the next token. `temperature` 0 is greedy. Fields as in Hugging Face generation, where `top_k` 0,
    `top_p` 1 and `min_p` 0 keep all tokens. Raises UsageError where one of them says nothing that could be meant."""

    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    seed: int = 0
    model_defaults: bool = False

    def __post_init__(self) -> None:
        check_rules(GivenSampling, self)


class PointDescription(Noun, frozen=True):
    """A point of this model: on which layers it exists, the shape of its value and whether it can be changed.

    `shape` is a legend such as `T H D` (positions, heads, features); `absent` says why layers are missing. `module` is
    the module whose input or output it is, or within whose call it is met: its path below the layer, or in the model
    for points outside the layers; None for the layers' own borders and where it is not the same in all layers.
    """

    point: str
    layers: tuple[int, ...] | None
    shape: str
    heads: int | None = None
    features: int | None = None
    editable: bool = True
    absent: str | None = None
    module: str | None = None


class ModuleDescription(Noun, frozen=True):
    """A module of the model by its path. `layer` is None outside the decoder layers; `called`: calls in one pass."""

    path: str
    kind: str
    layer: int | None
    called: int


class CheckResult(Noun, frozen=True):
    """One check of the load-time self-test."""

    name: str
    passed: bool
    detail: str


class CacheGroup(Noun, frozen=True):
    """A page group: layers that share one page table. `window` in positions, None for full attention."""

    kind: str
    layers: tuple[int, ...]
    window: int | None
    page_positions: int
    page_bytes: int


class ModelDescription(Noun, frozen=True):
    """The model that an engine serves, with all that was found in it. `notes`: sentences on what of the checkpoint is
    not served."""

    name: str
    revision: str | None
    architecture: str
    dtype: str
    device: str
    attention: str
    layers: int
    hidden_size: int
    vocab_size: int
    context_length: int | None
    parameters: int
    weight_bytes: int
    has_tokenizer: bool
    has_chat_template: bool
    eos_token_ids: tuple[int, ...]
    points: tuple[PointDescription, ...]
    cache_groups: tuple[CacheGroup, ...]
    recurrent_state_bytes: int
    feeding: Literal["chunks", "token by token"]
    generation_defaults: dict[str, str]
    checks: tuple[CheckResult, ...]
    notes: tuple[str, ...] = ()


class BreakpointDescription(Noun, frozen=True):
    """`note`: a sentence on what its condition may have been meant to say."""

    number: int
    site: str
    when: str | None
    once: bool
    enabled: bool
    hits: int
    note: str | None = None


class WatchDescription(Noun, frozen=True):
    """A recorded site: how many passes and bytes are held, the cap, and whether passes were left out because of it.
    `direction` is the name of the one whose component is recorded, None for the value itself."""

    site: str
    passes: int
    bytes_held: int
    byte_cap: int
    passes_left_out: int
    direction: str | None = None


class StopDescription(Noun, frozen=True):
    """One stop of a session's history. `index` counts from the oldest kept stop. `number` never repeats in a session,
    and a fork has those of the stops that it shares; None where it was kept by a version without such numbers."""

    index: int
    site: str
    step: int
    position: int
    reason: PauseReason
    edited: bool
    number: int | None = None


class Origin(Noun, frozen=True):
    """The beginning of a fork: `session` stood then at its stop of the number `stop` (the last one behind it, where it
    was not stopped; None where there was none) and had so many tokens. It may have gone elsewhere since, or be
    closed."""

    session: OwnName
    stop: int | None
    tokens: int


class CheckpointDescription(Noun, frozen=True):
    """A checkpoint in a file. `saved` in seconds since the epoch, `stopped_at` None for a session that stood idle."""

    name: OwnName
    session: OwnName
    model: str
    dtype: str
    tokens: int
    stopped_at: str | None
    step: int | None
    bytes_stored: int
    saved: float
    version: str


class StopIdentity(Noun, frozen=True):
    """The identity of a stop, given each time a session comes to stand: by a halt, a step, a way back, the end of a
    run, as a fork, out of a checkpoint. `number` never repeats in a session and grows; so does `edition`, which is the
    number until the stopped value is edited or reverted. Two readings with one identity were read from the same
    values."""

    session: OwnName
    number: int
    edition: int


class SessionDescription(Noun, frozen=True):
    """A session as others see it. `holder` is the kernel or process that has it open, None when detached. `notebook` is
    the notebook that it belongs to: its holder's, or the one that it was recovered for, until that opens it.

    `residency` is where its pages are: `resident` on the device, `host` or `disk` when they have left it, between them
    while they move. `host_bytes` and `disk_bytes` are what is stored there, also copies of what is resident;
    `dirty_bytes` have no copy yet. `exactness` is `recomputed` after a recovery that had to run tokens again, until the
    user accepts. `last_transfer` says why the last resume was slow, if it was. `stop` is where it stands, None while it
    runs: a view of another stop or edition is read again. `kept` is false while the journal does not have its latest
    state, so that an engine that dies loses it. `in_use`: of the sessions that its holder has open, the one that it
    works with, where it has said so. `attention` is how it computes attention, None where that is as the model was
    loaded; `adapter` the adapter that it computes with. `progress` is that of work in it which does not move it, such
    as a sweep. `shares` are those persons besides its owner who may use it."""

    name: OwnName
    owner: str
    holder: OwnName | None
    state: SessionState
    tokens: int
    committed: int
    stopped_at: str | None
    step: int | None
    breakpoints: tuple[BreakpointDescription, ...]
    rules: tuple[RuleDescription, ...]
    watches: tuple[WatchDescription, ...]
    stops_kept: int
    stop: StopIdentity | None
    pages: int
    device_bytes: int
    idle_seconds: float
    residency: Residency = "resident"
    host_bytes: int = 0
    disk_bytes: int = 0
    dirty_bytes: int = 0
    exactness: Exactness = "exact"
    last_transfer: Transfer | None = None
    kept: bool = True
    in_use: bool = False
    notebook: OwnName | None = None
    attention: str | None = None
    adapter: str | None = None
    progress: Progress | None = None
    shares: tuple[SharedWith, ...] = ()

    @property
    def doing(self) -> str:
        """Its present activity, as lists of sessions spell it: its state, or its work with its progress."""
        return self.state if self.progress is None else str(self.progress)


class TopToken(Noun, frozen=True):
    """A token with its probability under the softmax of fp32 logits."""

    token: int
    text: str
    probability: float
    logit: float


class RingSlot(Noun, frozen=True):
    """One slot of the ring on the device: the layer whose weights it holds or awaits, None before the first; the
    generation counts its fillings since the slots were taken. `computing`: a pass is in that layer."""

    layer: int | None
    generation: int
    bytes_allocated: int
    computing: bool


class WeightsStatistics(Noun, frozen=True):
    """The place of the weights. `asleep`: all have left the device. Streamed ones go through a ring of slots;
    `bytes_moved` counts what crossed since the start, `waited_seconds` what passes waited for it, of `pass_seconds`.
    `bytes_held_on_host`: of the streamed weights, those that are in host memory and not mapped from a file;
    `used_fraction`: of the moved bytes, where layers are mixtures of experts; `link_bytes_per_second` as it was
    measured before loading; with `bytes_enough` allowed nothing would stream. Unmeasured is None."""

    residency: Literal["resident", "asleep", "streamed"]
    bytes_total: int
    bytes_on_device: int
    bytes_streamed_per_pass: int = 0
    layers_streamed: int = 0
    ring_slots: int = 0
    ring: tuple[RingSlot, ...] = ()
    layer_copies: int = 0
    bytes_moved: int = 0
    copy_gigabytes_per_second: float | None = None
    waited_seconds: float = 0.0
    pass_seconds: float = 0.0
    used_fraction: float | None = None
    bytes_held_on_host: int | None = None
    link_bytes_per_second: float | None = None
    bytes_enough: int | None = None


class LayerCopy(Noun, frozen=True):
    """One copy of a streamed layer to a slot of the ring. `begun` in seconds since the epoch; `seconds` by device
    events on a GPU; `stalled_seconds`: what computing waited for it, None while no pass has come to the layer;
    `overlapped_seconds`: of `seconds`, those in which a pass computed."""

    number: int
    layer: int
    bytes_moved: int
    seconds: float
    begun: float
    stalled_seconds: float | None
    overlapped_seconds: float = 0.0


class PrefetchStatistics(Noun, frozen=True):
    """Sessions that were brought back before they were asked for: `hits` were there when asked for, `late` still on
    their way, `wasted` left again unused or were not used within a minute. `trust_in_focus`: the part of notebooks that
    came into focus whose session is expected to be used."""

    begun: int
    hits: int
    late: int
    wasted: int
    trust_in_focus: float


class EngineStatistics(Noun, frozen=True):
    """The engine's counts and accounting at one moment. Byte counts are of the device unless named otherwise;
    unmeasured is None.
    `other_bytes` belong to other processes on the device. `journal_trouble`: one sentence while sessions cannot be
    written to the journal, `log_trouble` while lines cannot be written to the log. Of the sessions of earlier
    engines `recovered_exact` came back with their keys, values and states, `recovered_recomputed` to have them made
    again. `faults`: errors that no request met; the last in words."""

    pid: int
    uptime_seconds: float
    sessions: int
    sessions_running: int
    passes: int
    layers_run: int
    tokens_sampled: int
    requests_answered: int
    preemptions: int
    weight_bytes: int
    slabs: tuple[SlabStatistics, ...]
    process_bytes: int | None
    device_bytes_in_use: int | None
    device_bytes_total: int | None
    other_bytes: int | None = None
    tiers: tuple[TierStatistics, ...] = ()
    weights: WeightsStatistics | None = None
    prefetches: PrefetchStatistics | None = None
    journal_trouble: str | None = None
    log_trouble: str | None = None
    faults: int = 0
    last_fault: str | None = None
    recovered_exact: int = 0
    recovered_recomputed: int = 0
    layers_replayed: int = 0  # of those run, by CUDA graphs
    graphs_postponed: int = 0  # layers whose CUDA graphs found no memory yet; recorded later, plain until then
    whole_heads: int = 0  # sweeps that read few logits and computed all: a few alone have other bits here
    budget: BudgetStatistics | None = None
    process: ProcessMemory | None = None
    people: tuple[PersonMemory, ...] = ()  # none where all sessions are the engine's own user's
    limits: GivenLimits | None = None


class Snapshot(Noun, frozen=True):
    """A copy of a site's value to look at; cannot be resumed.

    `value` has the site's own axes with positions first: [T, features], [T, heads, features] or [T, heads, keys].
    `positions` are absolute. `exactness` says how it was had; `recomputed` is the stopped value of a
    session that was run again after its engine had died. `stop` is what it was read from.
    """

    site: str
    value: Array
    axes: str
    positions: tuple[int, ...]
    dtype: str
    stop: StopIdentity
    exactness: ValueExactness


class LensRow(Noun, frozen=True):
    """The model's own epilogue at one position; `chosen` were asked for. Both are empty of features that are off."""

    position: int
    token: int
    text: str
    top: tuple[TopToken, ...]
    chosen: tuple[TopToken, ...] = ()
