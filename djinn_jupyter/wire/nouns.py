"""The nouns that both sides speak of: models, sessions, breakpoints, rules, readings. Values only."""

from __future__ import annotations

from typing import Literal

from msgspec.structs import asdict, replace

from djinn_jupyter.settings import GivenDrawing, GivenSampling, check_rules
from djinn_jupyter.wire.arrays import Array
from djinn_jupyter.wire.base import Frozen, OwnName
from djinn_jupyter.wire.base import Progress as Progress
from djinn_jupyter.wire.base import SharedWith as SharedWith
from djinn_jupyter.wire.base import Tier as Tier
from djinn_jupyter.wire.base import Transfer as Transfer
from djinn_jupyter.wire.edits import PassesMeant as PassesMeant
from djinn_jupyter.wire.edits import RuleDescription as RuleDescription


class Holding(Frozen, frozen=True):
    """Bytes on the device by one use: `pages`, `working copies`, `stops and states`."""

    kind: str
    bytes_held: int


class BudgetStatistics(Frozen, frozen=True):
    """The device memory of all sessions together: limit and use. `bytes_overdrawn` is the excess over the limit while
    older stops and sessions leave; 0 unless something unforeseen was created."""

    bytes_limit: int
    bytes_taken: int
    bytes_overdrawn: int
    holdings: tuple[Holding, ...]


class ProcessMemory(Frozen, frozen=True):
    """The main memory of the engine's process, as the system reports it, beside the engine's own accounting. Unmeasured
    is None."""

    anonymous_bytes: int | None  # its own
    mapped_bytes: int | None  # parts of files, which the system can evict
    accounted_bytes: int  # its own, counted: weights outside files, sessions on the CPU, the tiers
    runtime_bytes: int | None  # Python and its libraries, before a model was loaded
    beyond_bytes: int | None  # the rest of its own, not counted by any part
    device_beyond_bytes: int | None  # what the allocator has of a GPU beyond weights and sessions


class PersonMemory(Frozen, frozen=True):
    """The memory of one person's sessions, None for the engine's own user. A page or tensor that several sessions share
    counts once, for the person of the oldest of them. Working copies and free pages belong to no one."""

    person: str | None
    device_bytes: int
    host_bytes: int  # including copies of data on the device
    disk_bytes: int


class OwnerBudget(Frozen, frozen=True):
    """The limits of one owner of sessions; None is no limit. `running` is in seconds of the last day."""

    device: int | None = None
    host: int | None = None
    disk: int | None = None
    sessions: int | None = None
    running: int | None = None


class GivenLimits(Frozen, frozen=True):
    """The limits that an engine was started with, in bytes, positions and seconds. The engine chose those that are
    None."""

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
    """The accounting of the host or disk tier, in bytes; since the start `bytes_out` came to it and `bytes_in` went
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
    `top_p` 1 and `min_p` 0 keep all tokens. Raises UsageError for a meaningless value."""

    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    seed: int = 0
    model_defaults: bool = False

    def __post_init__(self) -> None:
        check_rules(GivenSampling, self)

    def changed(self, changes: SamplingChanges) -> Sampling:
        return replace(self, **{name: value for name, value in asdict(changes).items() if value is not None})


class SamplingChanges(Noun, frozen=True):
    """Settings of sampling for the rest of a run; None keeps the run's own. A `seed` begins its random numbers anew.
    Raises UsageError for a meaningless value."""

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None

    def __post_init__(self) -> None:
        check_rules(GivenDrawing, self)


class PointDescription(Noun, frozen=True):
    """A point of this model: on which layers it exists, the shape of its value and whether it can be changed.

    `shape` is a legend such as `T H D` (positions, heads, features); `absent` says why layers are missing. `module` is
    the path of the module with this input or output, or in whose call the point lies: below the layer, or in the model
    for points outside the layers. It is None for the layers' own borders, and where layers differ.
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
    """The model that an engine serves, with everything discovered in it. `notes`: sentences on parts of the checkpoint
    that are not served."""

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
    """`note`: a sentence on another possible meaning of its condition."""

    number: int
    site: str
    when: str | None
    once: bool
    enabled: bool
    hits: int
    note: str | None = None


class WatchDescription(Noun, frozen=True):
    """A recorded site: its passes and bytes, the cap, and whether passes were omitted because of it. `direction` is the
    name of the direction whose component is recorded, None for the value itself."""

    site: str
    passes: int
    bytes_held: int
    byte_cap: int
    passes_left_out: int
    direction: str | None = None


class StopDescription(Noun, frozen=True):
    """One stop of a session's history. `index` counts from the oldest kept stop. `number` never repeats in a session,
    and a fork has the same numbers for shared stops; None in a file of a version without such numbers."""

    index: int
    site: str
    step: int
    position: int
    reason: PauseReason
    edited: bool
    number: int | None = None


class Origin(Noun, frozen=True):
    """The beginning of a fork: `session` was then at its stop with the number `stop` (where it was not stopped, the
    last one before; None where there was none) and had so many tokens. It may have moved or closed since."""

    session: OwnName
    stop: int | None
    tokens: int


class CheckpointDescription(Noun, frozen=True):
    """A checkpoint in a file. `saved` in seconds since the epoch, `stopped_at` None for an idle session."""

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
    """The identity of a stop, assigned at each arrival: by a halt, a step, a way back, the end of a run, a fork, a
    checkpoint. `number` never repeats in a session and grows; so does `edition`, which equals the number until the
    stopped value is edited or reverted. Two readings with one identity have the same values."""

    session: OwnName
    number: int
    edition: int


class SessionDescription(Noun, frozen=True):
    """A session as others see it. `holder` is the kernel or process that has it open, None when detached. `notebook` is
    the notebook that it belongs to: its holder's, or the one that it was recovered for, until that opens it.

    `residency` is the place of its pages: `resident` on the device, `host` or `disk` when they have left it, between
    them while they move. `host_bytes` and `disk_bytes` are stored there, including copies of resident data;
    `dirty_bytes` have no copy yet. `exactness` is `recomputed` after a recovery that ran tokens again, until the user
    accepts. `last_transfer` explains a slow last resume. `stop` is its present stop, None while it runs: a view of
    another stop or edition is read again. `kept` is false while the journal lacks its latest state, which is lost if
    the engine dies. `in_use`: its holder works with this one among its open sessions, as it last reported. `attention`
    is its attention, None for the model's as loaded; `adapter` its adapter. `progress` is the progress of work that
    does not move it, such as a sweep. `shares` are the persons besides its owner who may use it."""

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
        """Its present activity, as in lists of sessions: its state, or its work with the progress."""
        return self.state if self.progress is None else str(self.progress)


class TopToken(Noun, frozen=True):
    """A token with its probability under the softmax of fp32 logits."""

    token: int
    text: str
    probability: float
    logit: float


class RingSlot(Noun, frozen=True):
    """One slot of the ring on the device: the layer whose weights it holds or awaits, None before the first. The
    generation counts its fillings since the slots were allocated. `computing`: a pass is in that layer."""

    layer: int | None
    generation: int
    bytes_allocated: int
    computing: bool


class WeightsStatistics(Noun, frozen=True):
    """The place of the weights. `asleep`: all have left the device. Streamed weights go through a ring of slots;
    `bytes_moved` counts the copied bytes since the start, `waited_seconds` the time of `pass_seconds` that passes
    waited for them. `bytes_held_on_host`: streamed weights in host memory, not mapped from a file. `used_fraction`: the
    used part of the moved bytes, for mixtures of experts. `link_bytes_per_second` was measured before loading. With
    `bytes_enough` allowed nothing would stream. Unmeasured is None."""

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
    events on a GPU; `stalled_seconds`: the wait of computing for it, None before a pass has reached the layer;
    `overlapped_seconds`: the part of `seconds` in which a pass computed."""

    number: int
    layer: int
    bytes_moved: int
    seconds: float
    begun: float
    stalled_seconds: float | None
    overlapped_seconds: float = 0.0


class PrefetchStatistics(Noun, frozen=True):
    """Sessions that were restored before a request needed them: `hits` were there in time, `late` ones still on their
    way, `wasted` ones left unused again or were not used within a minute. `trust_in_focus`: the share of focused
    notebooks whose session is expected to be used."""

    begun: int
    hits: int
    late: int
    wasted: int
    trust_in_focus: float


class EngineStatistics(Noun, frozen=True):
    """The engine's counts and accounting at one moment. Bytes are on the device unless named otherwise; unmeasured is
    None. `other_bytes` belong to other processes on the device. `journal_trouble`: one sentence while sessions cannot
    be written to the journal, `log_trouble` while lines cannot be written to the log. Among the sessions of earlier
    engines `recovered_exact` returned with their keys, values and states, `recovered_recomputed` without them, to be
    recomputed. `faults`: errors outside any request; the last in words."""

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
    layers_replayed: int = 0  # run by CUDA graphs
    graphs_postponed: int = 0  # layers whose CUDA graphs found no memory yet; recorded later, eager until then
    whole_heads: int = 0  # sweeps that read few logits and computed all: a few alone have other bits here
    budget: BudgetStatistics | None = None
    process: ProcessMemory | None = None
    people: tuple[PersonMemory, ...] = ()  # empty where all sessions belong to the engine's own user
    limits: GivenLimits | None = None


class Snapshot(Noun, frozen=True):
    """A copy of a site's value to look at; cannot be resumed.

    `value` has the site's own axes with positions first: [T, features], [T, heads, features] or [T, heads, keys].
    `positions` are absolute. `exactness` is `recomputed` for the stopped value of a session that was run again after
    its engine had died. `stop` is its source.
    """

    site: str
    value: Array
    axes: str
    positions: tuple[int, ...]
    dtype: str
    stop: StopIdentity
    exactness: ValueExactness


class LensRow(Noun, frozen=True):
    """The model's own epilogue at one position; `chosen` were requested. Both are empty for features that are off."""

    position: int
    token: int
    text: str
    top: tuple[TopToken, ...]
    chosen: tuple[TopToken, ...] = ()
