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

/** Bytes on the device by one use: `pages`, `working copies`, `stops and states`. */
export interface Holding {
  readonly kind: string;
  readonly bytes_held: number;
}

/**
 * The device memory of all sessions together: limit and use. `bytes_overdrawn` is the excess over the limit while
 * older stops and sessions leave; 0 unless something unforeseen was created.
 */
export interface BudgetStatistics {
  readonly bytes_limit: number;
  readonly bytes_taken: number;
  readonly bytes_overdrawn: number;
  readonly holdings: readonly Holding[];
}

/**
 * The main memory of the engine's process, as the system reports it, beside the engine's own accounting. Unmeasured
 * is None.
 */
export interface ProcessMemory {
  readonly anonymous_bytes: number | null;
  readonly mapped_bytes: number | null;
  readonly accounted_bytes: number;
  readonly runtime_bytes: number | null;
  readonly beyond_bytes: number | null;
  readonly device_beyond_bytes: number | null;
}

/**
 * The memory of one person's sessions, None for the engine's own user. A page or tensor that several sessions share
 * counts once, for the person of the oldest of them. Working copies and free pages belong to no one.
 */
export interface PersonMemory {
  readonly person: string | null;
  readonly device_bytes: number;
  readonly host_bytes: number;
  readonly disk_bytes: number;
}

/**
 * The limits that an engine was started with, in bytes, positions and seconds. The engine chose those that are
 * None.
 */
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
 * The accounting of the host or disk tier, in bytes; since the start `bytes_out` came to it and `bytes_in` went
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
 * `top_p` 1 and `min_p` 0 keep all tokens. Raises UsageError for a meaningless value.
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
 * Settings of sampling for the rest of a run; None keeps the run's own. A `seed` begins its random numbers anew.
 * Raises UsageError for a meaningless value.
 */
export interface SamplingChanges {
  readonly temperature: Float | null;
  readonly top_k: number | null;
  readonly top_p: Float | null;
  readonly min_p: Float | null;
  readonly repetition_penalty: Float | null;
  readonly seed: number | null;
}

/**
 * A point of this model: on which layers it exists, the shape of its value and whether it can be changed.
 *
 * `shape` is a legend such as `T H D` (positions, heads, features); `absent` says why layers are missing. `module` is
 * the path of the module with this input or output, or in whose call the point lies: below the layer, or in the model
 * for points outside the layers. It is None for the layers' own borders, and where layers differ.
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
 * The model that an engine serves, with everything discovered in it. `notes`: sentences on parts of the checkpoint
 * that are not served.
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

/** `note`: a sentence on another possible meaning of its condition. */
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
 * A recorded site: its passes and bytes, the cap, and whether passes were omitted because of it. `direction` is the
 * name of the direction whose component is recorded, None for the value itself.
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
 * and a fork has the same numbers for shared stops; None in a file of a version without such numbers.
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
 * The beginning of a fork: `session` was then at its stop with the number `stop` (where it was not stopped, the
 * last one before; None where there was none) and had so many tokens. It may have moved or closed since.
 */
export interface Origin {
  readonly session: string;
  readonly stop: number | null;
  readonly tokens: number;
}

/** A checkpoint in a file. `saved` in seconds since the epoch, `stopped_at` None for an idle session. */
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
 * The identity of a stop, assigned at each arrival: by a halt, a step, a way back, the end of a run, a fork, a
 * checkpoint. `number` never repeats in a session and grows; so does `edition`, which equals the number until the
 * stopped value is edited or reverted. Two readings with one identity have the same values.
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
 * `residency` is the place of its pages: `resident` on the device, `host` or `disk` when they have left it, between
 * them while they move. `host_bytes` and `disk_bytes` are stored there, including copies of resident data;
 * `dirty_bytes` have no copy yet. `exactness` is `recomputed` after a recovery that ran tokens again, until the user
 * accepts. `last_transfer` explains a slow last resume. `stop` is its present stop, None while it runs: a view of
 * another stop or edition is read again. `kept` is false while the journal lacks its latest state, which is lost if
 * the engine dies. `in_use`: its holder works with this one among its open sessions, as it last reported. `attention`
 * is its attention, None for the model's as loaded; `adapter` its adapter. `progress` is the progress of work that
 * does not move it, such as a sweep. `shares` are the persons besides its owner who may use it.
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
 * One slot of the ring on the device: the layer whose weights it holds or awaits, None before the first. The
 * generation counts its fillings since the slots were allocated. `computing`: a pass is in that layer.
 */
export interface RingSlot {
  readonly layer: number | null;
  readonly generation: number;
  readonly bytes_allocated: number;
  readonly computing: boolean;
}

/**
 * The place of the weights. `asleep`: all have left the device. Streamed weights go through a ring of slots;
 * `bytes_moved` counts the copied bytes since the start, `waited_seconds` the time of `pass_seconds` that passes
 * waited for them. `bytes_held_on_host`: streamed weights in host memory, not mapped from a file. `used_fraction`: the
 * used part of the moved bytes, for mixtures of experts. `link_bytes_per_second` was measured before loading. With
 * `bytes_enough` allowed nothing would stream. Unmeasured is None.
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
 * events on a GPU; `stalled_seconds`: the wait of computing for it, None before a pass has reached the layer;
 * `overlapped_seconds`: the part of `seconds` in which a pass computed.
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
 * Sessions that were restored before a request needed them: `hits` were there in time, `late` ones still on their
 * way, `wasted` ones left unused again or were not used within a minute. `trust_in_focus`: the share of focused
 * notebooks whose session is expected to be used.
 */
export interface PrefetchStatistics {
  readonly begun: number;
  readonly hits: number;
  readonly late: number;
  readonly wasted: number;
  readonly trust_in_focus: Float;
}

/**
 * The engine's counts and accounting at one moment. Bytes are on the device unless named otherwise; unmeasured is
 * None. `other_bytes` belong to other processes on the device. `journal_trouble`: one sentence while sessions cannot
 * be written to the journal, `log_trouble` while lines cannot be written to the log. Among the sessions of earlier
 * engines `recovered_exact` returned with their keys, values and states, `recovered_recomputed` without them, to be
 * recomputed. `faults`: errors outside any request; the last in words.
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
 * `positions` are absolute. `exactness` is `recomputed` for the stopped value of a session that was run again after
 * its engine had died. `stop` is its source.
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

/** The model's own epilogue at one position; `chosen` were requested. Both are empty for features that are off. */
export interface LensRow {
  readonly position: number;
  readonly token: number;
  readonly text: string;
  readonly top: readonly TopToken[];
  readonly chosen: readonly TopToken[];
}
