/* Written by docs/write_reference.py from the structs of the package; change those, not this file. */

import {
  ArrayJson,
  Float,
} from './values';

import {
  Progress,
  SharedWith,
  Transfer,
} from './base';

import {
  RuleDescription,
} from './edits';

export type SessionState = 'idle' | 'running' | 'paused' | 'closed';

export type PauseReason = 'breakpoint' | 'step' | 'interrupt' | 'back' | 'fork' | 'quota';

export type FinishReason = 'length' | 'eos' | 'stop_string' | 'context' | 'slab_full';

export type Residency = 'resident' | 'storing' | 'host' | 'loading' | 'disk';

export type Exactness = 'exact' | 'recomputed' | 'fast';

export type ValueExactness = 'exact' | 'recomputed' | 'fast' | 're-run from the committed cache' | 'run ahead' | 'recomputed from q and k';

export type Mode = 'fast' | 'exact';

export type AttentionName = 'eager' | 'sdpa';

export type Activity = 'busy' | 'idle' | 'focused' | 'blurred' | 'expected' | 'in_use' | 'gone';

/** Bytes on the device of one kind of holder: `pages`, `working copies`, `stops and states`. */
export interface Holding {
  readonly kind: string;
  readonly bytes_held: number;
}

/**
 * The memory that all sessions together may have on the device, and have. `bytes_overdrawn`: what is above the
 * limit, while older stops and sessions leave for it; 0 unless something was made whose room was not foreseen.
 */
export interface BudgetStatistics {
  readonly bytes_limit: number;
  readonly bytes_taken: number;
  readonly bytes_overdrawn: number;
  readonly holdings: readonly Holding[];
}

/** The main memory of the engine's process, as the system reports it, beside the accounting. Unmeasured is None. */
export interface ProcessMemory {
  readonly anonymous_bytes: number | null;
  readonly mapped_bytes: number | null;
  readonly accounted_bytes: number;
  readonly runtime_bytes: number | null;
  readonly beyond_bytes: number | null;
  readonly device_beyond_bytes: number | null;
}

/**
 * The memory that the sessions of one person hold, None for the engine's own user. A page or tensor that several
 * sessions share counts once, for the person of the oldest of them. Working copies and free pages are no one's.
 */
export interface PersonMemory {
  readonly person: string | null;
  readonly device_bytes: number;
  readonly host_bytes: number;
  readonly disk_bytes: number;
}

/** The limits that an engine was started with, in bytes, positions and seconds. None was left to the engine. */
export interface GivenLimits {
  readonly device_memory: number | null;
  readonly card_memory: number | null;
  readonly host_memory: number | null;
  readonly disk_memory: number | null;
  readonly page_positions: number | null;
  readonly idle_swap_seconds: Float;
}

export interface SlabStatistics {
  readonly pages: number;
  readonly pages_free: number;
  readonly pages_shared: number;
  readonly page_bytes: number;
  readonly bytes_allocated: number;
  readonly bytes_limit: number;
  readonly working_copies: number;
  readonly working_bytes: number;
}

/**
 * The accounting of the host or disk tier, in bytes; since the start `bytes_out` came to it, `bytes_in` went
 * back.
 */
export interface TierStatistics {
  readonly tier: 'host' | 'disk';
  readonly pages: number;
  readonly bytes_used: number;
  readonly bytes_allocated: number;
  readonly bytes_limit: number;
  readonly bytes_out: number;
  readonly bytes_in: number;
}

/**
 * The choice of the next token. `temperature` 0 is greedy. Fields as in Hugging Face generation, where `top_k` 0,
 * `top_p` 1 and `min_p` 0 keep all tokens. Raises UsageError where one of them says nothing that could be meant.
 */
export interface Sampling {
  readonly temperature?: number;
  readonly top_k?: number | null;
  readonly top_p?: number | null;
  readonly min_p?: number | null;
  readonly repetition_penalty?: number | null;
  readonly seed?: number;
  readonly model_defaults?: boolean;
}

/**
 * A point of this model: on which layers it exists, the shape of its value and whether it can be changed.
 *
 * `shape` is a legend such as `T H D` (positions, heads, features); `absent` says why layers are missing. `module` is
 * the module whose input or output it is, or within whose call it is met: its path below the layer, or in the model
 * for points outside the layers; None for the layers' own borders and where it is not the same in all layers.
 */
export interface PointDescription {
  readonly point: string;
  readonly layers: readonly number[] | null;
  readonly shape: string;
  readonly heads: number | null;
  readonly features: number | null;
  readonly editable: boolean;
  readonly absent: string | null;
  readonly module: string | null;
}

/** A module of the model by its path. `layer` is None outside the decoder layers; `called`: calls in one pass. */
export interface ModuleDescription {
  readonly path: string;
  readonly kind: string;
  readonly layer: number | null;
  readonly called: number;
}

/** One check of the load-time self-test. */
export interface CheckResult {
  readonly name: string;
  readonly passed: boolean;
  readonly detail: string;
}

/** A page group: layers that share one page table. `window` in positions, None for full attention. */
export interface CacheGroup {
  readonly kind: string;
  readonly layers: readonly number[];
  readonly window: number | null;
  readonly page_positions: number;
  readonly page_bytes: number;
}

/**
 * The model that an engine serves, with all that was found in it. `notes`: sentences on what of the checkpoint is
 * not served.
 */
export interface ModelDescription {
  readonly name: string;
  readonly revision: string | null;
  readonly architecture: string;
  readonly dtype: string;
  readonly device: string;
  readonly attention: string;
  readonly layers: number;
  readonly hidden_size: number;
  readonly vocab_size: number;
  readonly context_length: number | null;
  readonly parameters: number;
  readonly weight_bytes: number;
  readonly has_tokenizer: boolean;
  readonly has_chat_template: boolean;
  readonly eos_token_ids: readonly number[];
  readonly points: readonly PointDescription[];
  readonly cache_groups: readonly CacheGroup[];
  readonly recurrent_state_bytes: number;
  readonly feeding: 'chunks' | 'token by token';
  readonly generation_defaults: { readonly [name: string]: string };
  readonly checks: readonly CheckResult[];
  readonly notes: readonly string[];
}

/** `note`: a sentence on what its condition may have been meant to say. */
export interface BreakpointDescription {
  readonly number: number;
  readonly site: string;
  readonly when: string | null;
  readonly once: boolean;
  readonly enabled: boolean;
  readonly hits: number;
  readonly note: string | null;
}

/**
 * A recorded site: how many passes and bytes are held, the cap, and whether passes were left out because of it.
 * `direction` is the name of the one whose component is recorded, None for the value itself.
 */
export interface WatchDescription {
  readonly site: string;
  readonly passes: number;
  readonly bytes_held: number;
  readonly byte_cap: number;
  readonly passes_left_out: number;
  readonly direction: string | null;
}

/**
 * One stop of a session's history. `index` counts from the oldest kept stop. `number` never repeats in a session,
 * and a fork has those of the stops that it shares; None where it was kept by a version without such numbers.
 */
export interface StopDescription {
  readonly index: number;
  readonly site: string;
  readonly step: number;
  readonly position: number;
  readonly reason: 'breakpoint' | 'step' | 'interrupt' | 'back' | 'fork' | 'quota';
  readonly edited: boolean;
  readonly number: number | null;
}

/**
 * The beginning of a fork: `session` stood then at its stop of the number `stop` (the last one behind it, where it
 * was not stopped; None where there was none) and had so many tokens. It may have gone elsewhere since, or be
 * closed.
 */
export interface Origin {
  readonly session: string;
  readonly stop: number | null;
  readonly tokens: number;
}

/** A checkpoint in a file. `saved` in seconds since the epoch, `stopped_at` None for a session that stood idle. */
export interface CheckpointDescription {
  readonly name: string;
  readonly session: string;
  readonly model: string;
  readonly dtype: string;
  readonly tokens: number;
  readonly stopped_at: string | null;
  readonly step: number | null;
  readonly bytes_stored: number;
  readonly saved: Float;
  readonly version: string;
}

/**
 * The identity of a stop, given each time a session comes to stand: by a halt, a step, a way back, the end of a
 * run, as a fork, out of a checkpoint. `number` never repeats in a session and grows; so does `edition`, which is the
 * number until the stopped value is edited or reverted. Two readings with one identity were read from the same
 * values.
 */
export interface StopIdentity {
  readonly session: string;
  readonly number: number;
  readonly edition: number;
}

/**
 * A session as others see it. `holder` is the kernel or process that has it open, None when detached. `notebook` is
 * the notebook that it belongs to: its holder's, or the one that it was recovered for, until that opens it.
 *
 * `residency` is where its pages are: `resident` on the device, `host` or `disk` when they have left it, between them
 * while they move. `host_bytes` and `disk_bytes` are what is stored there, also copies of what is resident;
 * `dirty_bytes` have no copy yet. `exactness` is `recomputed` after a recovery that had to run tokens again, until the
 * user accepts. `last_transfer` says why the last resume was slow, if it was. `stop` is where it stands, None while it
 * runs: a view of another stop or edition is read again. `kept` is false while the journal does not have its latest
 * state, so that an engine that dies loses it. `in_use`: of the sessions that its holder has open, the one that it
 * works with, where it has said so. `attention` is how it computes attention, None where that is as the model was
 * loaded; `adapter` the adapter that it computes with. `progress` is that of work in it which does not move it, such
 * as a sweep. `shares` are those persons besides its owner who may use it.
 */
export interface SessionDescription {
  readonly name: string;
  readonly owner: string;
  readonly holder: string | null;
  readonly state: 'idle' | 'running' | 'paused' | 'closed';
  readonly tokens: number;
  readonly committed: number;
  readonly stopped_at: string | null;
  readonly step: number | null;
  readonly breakpoints: readonly BreakpointDescription[];
  readonly rules: readonly RuleDescription[];
  readonly watches: readonly WatchDescription[];
  readonly stops_kept: number;
  readonly stop: StopIdentity | null;
  readonly pages: number;
  readonly device_bytes: number;
  readonly idle_seconds: Float;
  readonly residency: 'resident' | 'storing' | 'host' | 'loading' | 'disk';
  readonly host_bytes: number;
  readonly disk_bytes: number;
  readonly dirty_bytes: number;
  readonly exactness: 'exact' | 'recomputed' | 'fast';
  readonly last_transfer: Transfer | null;
  readonly kept: boolean;
  readonly in_use: boolean;
  readonly notebook: string | null;
  readonly attention: string | null;
  readonly adapter: string | null;
  readonly progress: Progress | null;
  readonly shares: readonly SharedWith[];
}

/** A token with its probability under the softmax of fp32 logits. */
export interface TopToken {
  readonly token: number;
  readonly text: string;
  readonly probability: Float;
  readonly logit: Float;
}

/**
 * One slot of the ring on the device: the layer whose weights it holds or awaits, None before the first; the
 * generation counts its fillings since the slots were taken. `computing`: a pass is in that layer.
 */
export interface RingSlot {
  readonly layer: number | null;
  readonly generation: number;
  readonly bytes_allocated: number;
  readonly computing: boolean;
}

/**
 * The place of the weights. `asleep`: all have left the device. Streamed ones go through a ring of slots;
 * `bytes_moved` counts what crossed since the start, `waited_seconds` what passes waited for it, of `pass_seconds`.
 * `bytes_held_on_host`: of the streamed weights, those that are in host memory and not mapped from a file;
 * `used_fraction`: of the moved bytes, where layers are mixtures of experts; `link_bytes_per_second` as it was
 * measured before loading; with `bytes_enough` allowed nothing would stream. Unmeasured is None.
 */
export interface WeightsStatistics {
  readonly residency: 'resident' | 'asleep' | 'streamed';
  readonly bytes_total: number;
  readonly bytes_on_device: number;
  readonly bytes_streamed_per_pass: number;
  readonly layers_streamed: number;
  readonly ring_slots: number;
  readonly ring: readonly RingSlot[];
  readonly layer_copies: number;
  readonly bytes_moved: number;
  readonly copy_gigabytes_per_second: Float | null;
  readonly waited_seconds: Float;
  readonly pass_seconds: Float;
  readonly used_fraction: Float | null;
  readonly bytes_held_on_host: number | null;
  readonly link_bytes_per_second: Float | null;
  readonly bytes_enough: number | null;
}

/**
 * One copy of a streamed layer to a slot of the ring. `begun` in seconds since the epoch; `seconds` by device
 * events on a GPU; `stalled_seconds`: what computing waited for it, None while no pass has come to the layer;
 * `overlapped_seconds`: of `seconds`, those in which a pass computed.
 */
export interface LayerCopy {
  readonly number: number;
  readonly layer: number;
  readonly bytes_moved: number;
  readonly seconds: Float;
  readonly begun: Float;
  readonly stalled_seconds: Float | null;
  readonly overlapped_seconds: Float;
}

/**
 * Sessions that were brought back before they were asked for: `hits` were there when asked for, `late` still on
 * their way, `wasted` left again unused or were not used within a minute. `trust_in_focus`: the part of notebooks that
 * came into focus whose session is expected to be used.
 */
export interface PrefetchStatistics {
  readonly begun: number;
  readonly hits: number;
  readonly late: number;
  readonly wasted: number;
  readonly trust_in_focus: Float;
}

/**
 * The engine's counts and accounting at one moment. Byte counts are of the device unless named otherwise;
 * unmeasured is None.
 * `other_bytes` belong to other processes on the device. `journal_trouble`: one sentence while sessions cannot be
 * written to the journal, `log_trouble` while lines cannot be written to the log. Of the sessions of earlier
 * engines `recovered_exact` came back with their keys, values and states, `recovered_recomputed` to have them made
 * again. `faults`: errors that no request met; the last in words.
 */
export interface EngineStatistics {
  readonly pid: number;
  readonly uptime_seconds: Float;
  readonly sessions: number;
  readonly sessions_running: number;
  readonly passes: number;
  readonly layers_run: number;
  readonly tokens_sampled: number;
  readonly requests_answered: number;
  readonly preemptions: number;
  readonly weight_bytes: number;
  readonly slabs: readonly SlabStatistics[];
  readonly process_bytes: number | null;
  readonly device_bytes_in_use: number | null;
  readonly device_bytes_total: number | null;
  readonly other_bytes: number | null;
  readonly tiers: readonly TierStatistics[];
  readonly weights: WeightsStatistics | null;
  readonly prefetches: PrefetchStatistics | null;
  readonly journal_trouble: string | null;
  readonly log_trouble: string | null;
  readonly faults: number;
  readonly last_fault: string | null;
  readonly recovered_exact: number;
  readonly recovered_recomputed: number;
  readonly layers_replayed: number;
  readonly graphs_postponed: number;
  readonly whole_heads: number;
  readonly budget: BudgetStatistics | null;
  readonly process: ProcessMemory | null;
  readonly people: readonly PersonMemory[];
  readonly limits: GivenLimits | null;
}

/**
 * A copy of a site's value to look at; cannot be resumed.
 *
 * `value` has the site's own axes with positions first: [T, features], [T, heads, features] or [T, heads, keys].
 * `positions` are absolute. `exactness` says how it was had; `recomputed` is the stopped value of a
 * session that was run again after its engine had died. `stop` is what it was read from.
 */
export interface Snapshot {
  readonly site: string;
  readonly value: ArrayJson;
  readonly axes: string;
  readonly positions: readonly number[];
  readonly dtype: string;
  readonly stop: StopIdentity;
  readonly exactness: 'exact' | 'recomputed' | 'fast' | 're-run from the committed cache' | 'run ahead' | 'recomputed from q and k';
}

/** The model's own epilogue at one position; `chosen` were asked for. Both are empty of features that are off. */
export interface LensRow {
  readonly position: number;
  readonly token: number;
  readonly text: string;
  readonly top: readonly TopToken[];
  readonly chosen: readonly TopToken[];
}
