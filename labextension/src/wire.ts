/* Written by docs/write_reference.py from the structs of the package; change those, not this file. */

/** What an engine measured or computed; null when it is not finite. */
export type Float = number | null;

/** Little-endian, row-major. */
export interface ArrayJson {
  readonly dtype: 'bool' | 'uint8' | 'int32' | 'int64' | 'float16' | 'bfloat16' | 'float32' | 'float64';
  readonly shape: readonly number[];
  readonly base64: string;
}

export type SessionState = 'idle' | 'running' | 'paused' | 'closed';

export type PauseReason = 'breakpoint' | 'step' | 'interrupt' | 'back' | 'fork';

export type FinishReason = 'length' | 'eos' | 'stop_string' | 'context' | 'slab_full';

export type Tier = 'host' | 'disk';

export type Residency = 'resident' | 'storing' | 'host' | 'loading' | 'disk';

export type Exactness = 'exact' | 'recomputed';

export type Activity = 'busy' | 'idle' | 'focused' | 'blurred' | 'expected' | 'gone';

export type EngineState = 'connecting' | 'ready' | 'refused';

/** x * factor */
export interface ScaleEdit {
  readonly edit: 'scale';
  readonly factor: number;
}

/** x + coef * vector; `vector` broadcasts against [positions, features] (or [positions, heads, head features]). */
export interface AddEdit {
  readonly edit: 'add';
  readonly vector: ArrayJson;
  readonly coef?: number;
}

/** An array (a number is one of shape ()) that broadcasts to the selected part. */
export interface SetEdit {
  readonly edit: 'set';
  readonly value: ArrayJson;
}

/** 0 */
export interface ZeroEdit {
  readonly edit: 'zero';
}

/** min(max(x, low), high); a bound of None is open. */
export interface ClampEdit {
  readonly edit: 'clamp';
  readonly low?: number | null;
  readonly high?: number | null;
}

/** x - (x . d) d / |d|^2 along the last axis: removes the component along `direction`. */
export interface ProjectOutEdit {
  readonly edit: 'projectout';
  readonly direction: ArrayJson;
}

/**
 * The value that another session's stopped pass has there.
 *
 * `site` defaults to the edited one; `positions` (absolute, in the source) to the edited positions.
 */
export interface PatchFromEdit {
  readonly edit: 'patchfrom';
  readonly session: string;
  readonly site?: string | null;
  readonly positions?: readonly number[] | null;
}

/** How the next token is chosen. `temperature` 0 is greedy. Fields as in Hugging Face generation. */
export interface Sampling {
  readonly temperature?: number;
  readonly top_k?: number | null;
  readonly top_p?: number | null;
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

/** What an engine serves, and what was found in it. */
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
}

export interface BreakpointDescription {
  readonly number: number;
  readonly site: string;
  readonly when: string | null;
  readonly once: boolean;
  readonly enabled: boolean;
  readonly hits: number;
}

/** A steering rule and its books: passes met, changed, |change| / |value| of the last passes, oldest first. */
export interface RuleDescription {
  readonly number: number;
  readonly site: string;
  readonly edit: Edit;
  readonly positions: readonly number[] | null;
  readonly passes_met: number;
  readonly passes_changed: number;
  readonly last_relative_size: Float | null;
  readonly mean_relative_size: Float | null;
  readonly relative_sizes: readonly Float[];
}

/** A recorded site: how many passes and bytes are held, the cap, and whether passes were left out because of it. */
export interface WatchDescription {
  readonly site: string;
  readonly passes: number;
  readonly bytes_held: number;
  readonly byte_cap: number;
  readonly passes_left_out: number;
}

/** One stop of a session's history. `index` counts from the oldest kept stop. */
export interface StopDescription {
  readonly index: number;
  readonly site: string;
  readonly step: number;
  readonly position: number;
  readonly reason: 'breakpoint' | 'step' | 'interrupt' | 'back' | 'fork';
  readonly edited: boolean;
}

/** One move of a session's bytes between the device and a tier: how many really moved, and how long it took. */
export interface Transfer {
  readonly direction: 'out' | 'in';
  readonly tier: 'host' | 'disk';
  readonly bytes_moved: number;
  readonly seconds: Float;
  readonly cause: 'asked' | 'pressure' | 'idleness' | 'prefetch' | 'needed' | 'write_through';
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
 * A session as others see it. `holder` is the kernel or process that has it open, None when detached.
 *
 * `residency` is where its pages are: `resident` on the device, `host` or `disk` when they have left it, between them
 * while they move. `host_bytes` and `disk_bytes` are what is stored there, also copies of what is resident;
 * `dirty_bytes` have no copy yet. `exactness` is `recomputed` after a recovery that had to run tokens again, until the
 * user accepts. `last_transfer` says why the last resume was slow, if it was. `edits_made` moves on whenever a stopped
 * value is edited or reverted: who shows it reads it again.
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
  readonly edits_made: number;
  readonly pages: number;
  readonly device_bytes: number;
  readonly idle_seconds: Float;
  readonly residency: 'resident' | 'storing' | 'host' | 'loading' | 'disk';
  readonly host_bytes: number;
  readonly disk_bytes: number;
  readonly dirty_bytes: number;
  readonly exactness: 'exact' | 'recomputed';
  readonly last_transfer: Transfer | null;
}

/** A token with its probability under the softmax of fp32 logits. */
export interface TopToken {
  readonly token: number;
  readonly text: string;
  readonly probability: Float;
  readonly logit: Float;
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
 * The books of the host or the disk tier, in bytes; `bytes_out` have come to it since the start, `bytes_in` gone
 * back from it.
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
 * Where the weights are. `napping`: all have left the device. Streamed ones go through a ring of slots;
 * `bytes_moved` counts what crossed since the start, `waited_seconds` what passes waited for it, of `pass_seconds`.
 * `bytes_held_on_host`: of the streamed weights, those that are in host memory and not mapped from a file;
 * `used_fraction`: of the moved bytes, where layers are mixtures of experts; `link_bytes_per_second` as it was
 * measured before loading; with `bytes_enough` allowed nothing would stream. Unmeasured is None.
 */
export interface WeightsStatistics {
  readonly residency: 'resident' | 'napping' | 'streamed';
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
 * events on a GPU; `stalled_seconds`: what computing waited for it, None while no pass has come to the layer.
 */
export interface LayerCopy {
  readonly number: number;
  readonly layer: number;
  readonly bytes_moved: number;
  readonly seconds: Float;
  readonly begun: Float;
  readonly stalled_seconds: Float | null;
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
 * The engine's books at one moment. Byte counts are of the device unless named otherwise; unmeasured is None.
 * `other_bytes` belong to other processes on the device.
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
}

/**
 * A copy of a site's value to look at; cannot be resumed.
 *
 * `value` has the site's own axes with positions first: [T, features], [T, heads, features] or [T, heads, keys].
 * `positions` are absolute. `exactness` says how it was had.
 */
export interface Snapshot {
  readonly site: string;
  readonly value: ArrayJson;
  readonly axes: string;
  readonly positions: readonly number[];
  readonly dtype: string;
  readonly exactness: 'exact' | 're-run from the committed cache' | 'run ahead' | 'recomputed from q and k';
}

/** The model's own epilogue applied to the value at one position. `chosen` are the tokens that were asked for. */
export interface LensRow {
  readonly position: number;
  readonly token: number;
  readonly text: string;
  readonly top: readonly TopToken[];
  readonly chosen: readonly TopToken[];
}

/** The next-token distribution without and with the edits of the present stop. `kl` in nats, KL(with || without). */
export interface EffectReading {
  readonly before: readonly TopToken[];
  readonly after: readonly TopToken[];
  readonly kl: Float;
  readonly top1_changed: boolean;
  readonly logit_difference_norm: Float;
}

export interface Ping {
  readonly request: 'Ping';
}

export interface ListModules {
  readonly request: 'ListModules';
}

export interface Tokenize {
  readonly request: 'Tokenize';
  readonly text: string;
  readonly chat?: boolean;
}

export interface Detokenize {
  readonly request: 'Detokenize';
  readonly tokens: readonly number[];
}

export interface ReadStatistics {
  readonly request: 'ReadStatistics';
}

export interface ListSessions {
  readonly request: 'ListSessions';
}

/**
 * Refused while other holders have sessions, unless `force`. The sessions come back with the next engine of this
 * model, where a journal is kept, unless `forget`.
 */
export interface Shutdown {
  readonly request: 'Shutdown';
  readonly force?: boolean;
  readonly forget?: boolean;
}

/**
 * Open or attach. A live session of another holder needs `join`.
 *
 * `fresh` forgets tokens, breakpoints and rules first.
 */
export interface Open {
  readonly request: 'Open';
  readonly session: string;
  readonly join?: boolean;
  readonly fresh?: boolean;
}

export interface Describe {
  readonly request: 'Describe';
  readonly session: string;
}

export interface Close {
  readonly request: 'Close';
  readonly session: string;
}

/** A new session `name` with the same tokens, stop and rules; pages are shared until one of the two writes. */
export interface Fork {
  readonly request: 'Fork';
  readonly session: string;
  readonly name: string;
}

/**
 * Run a prompt (text or token ids) until a stop or the end.
 *
 * A fresh line of tokens, unless `extend`: then the prompt (may be empty) is appended to the present line.
 * `free` ignores breakpoints.
 */
export interface Run {
  readonly request: 'Run';
  readonly session: string;
  readonly text?: string | null;
  readonly tokens?: readonly number[] | null;
  readonly max_new_tokens?: number;
  readonly sampling?: Sampling;
  readonly stop?: readonly string[];
  readonly ignore_eos?: boolean;
  readonly chat?: boolean;
  readonly extend?: boolean;
  readonly free?: boolean;
}

export interface Resume {
  readonly request: 'Resume';
  readonly session: string;
  readonly free?: boolean;
}

/**
 * By layers, by tokens (to the same site of a later pass), or by points: to the next point of the layer that the
 * pass stands before or inside, at its end to the layer's output.
 */
export interface Step {
  readonly request: 'Step';
  readonly session: string;
  readonly count?: number;
  readonly by?: 'layer' | 'token' | 'point';
}

export interface Pause {
  readonly request: 'Pause';
  readonly session: string;
}

export interface Back {
  readonly request: 'Back';
  readonly session: string;
  readonly count?: number;
  readonly by?: 'stop' | 'layer' | 'token';
}

export interface SetBreakpoint {
  readonly request: 'SetBreakpoint';
  readonly session: string;
  readonly site: string;
  readonly when?: string | null;
  readonly once?: boolean;
}

export interface EnableBreakpoint {
  readonly request: 'EnableBreakpoint';
  readonly session: string;
  readonly number: number;
  readonly enabled: boolean;
}

/** `sites` None clears all; otherwise spellings or numbers. */
export interface ClearBreakpoints {
  readonly request: 'ClearBreakpoints';
  readonly session: string;
  readonly sites?: readonly string[] | null;
}

/**
 * Change the stopped value. `site` must be the stopped one (with any selector) or None. `positions` are absolute,
 * negative from the end of the pass, None for all of the pass.
 */
export interface ApplyEdit {
  readonly request: 'ApplyEdit';
  readonly session: string;
  readonly edit: Edit;
  readonly site?: string | null;
  readonly positions?: readonly number[] | null;
}

export interface RevertEdits {
  readonly request: 'RevertEdits';
  readonly session: string;
}

export interface MeasureEffect {
  readonly request: 'MeasureEffect';
  readonly session: string;
  readonly top?: number;
}

export interface Steer {
  readonly request: 'Steer';
  readonly session: string;
  readonly site: string;
  readonly edit: Edit;
  readonly positions?: readonly number[] | null;
}

/** `number` None removes all rules. */
export interface Unsteer {
  readonly request: 'Unsteer';
  readonly session: string;
  readonly number?: number | null;
}

/** A site's value in the stopped pass. Sites not reached yet need `ahead`. `site` None is the stopped one. */
export interface Inspect {
  readonly request: 'Inspect';
  readonly session: string;
  readonly site?: string | null;
  readonly positions?: readonly number[] | null;
  readonly ahead?: boolean;
}

/**
 * Logit lens at a residual site of the stopped pass; `site` None is the stopped one. `tokens`, by text or number,
 * are read besides the `top` most probable.
 */
export interface Lens {
  readonly request: 'Lens';
  readonly session: string;
  readonly site?: string | null;
  readonly positions?: readonly number[] | null;
  readonly top?: number;
  readonly tokens?: readonly (number | string)[];
}

/**
 * What an expression of the condition language is at a position of the stopped pass, as a breakpoint there would
 * read it. `site` None is the stopped one; `position` is absolute, negative from the end of the pass.
 */
export interface Evaluate {
  readonly request: 'Evaluate';
  readonly session: string;
  readonly expression: string;
  readonly site?: string | null;
  readonly position?: number;
}

export interface Watch {
  readonly request: 'Watch';
  readonly session: string;
  readonly site: string;
  readonly byte_cap?: number;
}

/** `site` None ends all watches. */
export interface Unwatch {
  readonly request: 'Unwatch';
  readonly session: string;
  readonly site?: string | null;
}

export interface ReadWatch {
  readonly request: 'ReadWatch';
  readonly session: string;
  readonly site: string;
}

/** The present stop once more, as it was reported. */
export interface ReadStop {
  readonly request: 'ReadStop';
  readonly session: string;
}

/** fp32 logits of the last position of the last finished pass. */
export interface ReadLogits {
  readonly request: 'ReadLogits';
  readonly session: string;
}

export interface ReadHistory {
  readonly request: 'ReadHistory';
  readonly session: string;
}

/** The session's pages and states leave the device for `tier`; it comes back when it is next needed. */
export interface SwapOut {
  readonly request: 'SwapOut';
  readonly session: string;
  readonly tier?: 'host' | 'disk';
}

/** Bring the session back now. Answered at once when it is resident. */
export interface SwapIn {
  readonly request: 'SwapIn';
  readonly session: string;
}

/** The weights leave the device until the next request that needs them. Refused while a session runs. */
export interface Nap {
  readonly request: 'Nap';
}

export interface Wake {
  readonly request: 'Wake';
}

/**
 * The copies of streamed layers that have arrived, with higher numbers than `since`; the last few thousand are
 * kept.
 */
export interface ReadCopies {
  readonly request: 'ReadCopies';
  readonly since?: number;
}

/** Keep the session as it stands in a file called `name`. A file of that name is replaced only with `replace`. */
export interface SaveCheckpoint {
  readonly request: 'SaveCheckpoint';
  readonly session: string;
  readonly name: string;
  readonly replace?: boolean;
}

/**
 * Open `session` as it was when the checkpoint `name` (or the file at that path) was saved. A session of that name
 * is replaced only with `replace`.
 */
export interface RestoreCheckpoint {
  readonly request: 'RestoreCheckpoint';
  readonly session: string;
  readonly name: string;
  readonly replace?: boolean;
}

export interface ListCheckpoints {
  readonly request: 'ListCheckpoints';
}

export interface DropCheckpoint {
  readonly request: 'DropCheckpoint';
  readonly name: string;
}

/** The user has seen that the session was recomputed after a recovery; from now on it counts as exact again. */
export interface AcceptRecomputed {
  readonly request: 'AcceptRecomputed';
  readonly session: string;
}

/** `code` is the class of `djinn_jupyter.errors` to raise; `message` says what is wrong and what to do. */
export interface Failed {
  readonly reply: 'Failed';
  readonly code: string;
  readonly message: string;
}

export interface Welcome {
  readonly reply: 'Welcome';
  readonly version: string;
  readonly model: ModelDescription;
  readonly attached: readonly string[];
}

export interface Departed {
  readonly reply: 'Departed';
}

export interface Pong {
  readonly reply: 'Pong';
}

export interface Modules {
  readonly reply: 'Modules';
  readonly modules: readonly ModuleDescription[];
}

export interface Tokenized {
  readonly reply: 'Tokenized';
  readonly tokens: readonly number[];
  readonly texts: readonly string[];
  readonly text: string;
}

export interface Statistics {
  readonly reply: 'Statistics';
  readonly statistics: EngineStatistics;
}

export interface Sessions {
  readonly reply: 'Sessions';
  readonly sessions: readonly SessionDescription[];
}

/** `sessions_kept` are in the journal and come back with the next engine of this model. */
export interface ShuttingDown {
  readonly reply: 'ShuttingDown';
  readonly sessions_lost: readonly string[];
  readonly sessions_kept: readonly string[];
}

export interface Opened {
  readonly reply: 'Opened';
  readonly session: SessionDescription;
  readonly created: boolean;
}

export interface Described {
  readonly reply: 'Described';
  readonly session: SessionDescription;
}

export interface Detached {
  readonly reply: 'Detached';
}

export interface Closed {
  readonly reply: 'Closed';
  readonly pages_freed: number;
}

/** The run will stop at its next layer boundary; `was_running` is False when there was nothing to stop. */
export interface Pausing {
  readonly reply: 'Pausing';
  readonly was_running: boolean;
}

/**
 * A forward pass that stands still.
 *
 * `layer` layers have run in this pass, layers `layer`.. have not (a stop inside layer n has run n whole layers).
 * `step` 0 is the prompt, n the n-th generated token. `positions` are the absolute positions of this pass.
 * `norms` are L2 norms of the value at each position of the pass, over all other axes. `matched` is the position
 * for which the breakpoint's condition held. `also` names further breakpoints met at the same place.
 */
export interface Paused {
  readonly reply: 'Paused';
  readonly session: string;
  readonly site: string;
  readonly reason: 'breakpoint' | 'step' | 'interrupt' | 'back' | 'fork';
  readonly breakpoint: BreakpointDescription | null;
  readonly also: readonly string[];
  readonly matched: number | null;
  readonly step: number;
  readonly layer: number;
  readonly layers: number;
  readonly positions: readonly number[];
  readonly tokens: readonly number[];
  readonly texts: readonly string[];
  readonly prompt_tokens: number;
  readonly new_text: string;
  readonly shape: readonly number[];
  readonly axes: string;
  readonly dtype: string;
  readonly norms: readonly Float[];
  readonly edits: readonly string[];
  readonly history_index: number;
  readonly history_length: number;
  readonly layers_run: number;
}

/**
 * A run that reached its end. `tokens` are the new ids of this run, over all its stops; `top` the distribution they
 * ended with: of the position after the last token fed. `layers_run` counts since the run began. `ignored_defaults`
 * are the model's own generation settings that were not applied.
 */
export interface Finished {
  readonly reply: 'Finished';
  readonly session: string;
  readonly reason: 'length' | 'eos' | 'stop_string' | 'context' | 'slab_full';
  readonly detail: string | null;
  readonly tokens: readonly number[];
  readonly texts: readonly string[];
  readonly text: string;
  readonly prompt_tokens: readonly number[];
  readonly prompt_texts: readonly string[];
  readonly top: readonly TopToken[];
  readonly rules: readonly RuleDescription[];
  readonly ignored_defaults: readonly string[];
  readonly layers_run: number;
  readonly passes: number;
}

export interface BreakpointSet {
  readonly reply: 'BreakpointSet';
  readonly breakpoint: BreakpointDescription;
  readonly existed: boolean;
}

export interface Cleared {
  readonly reply: 'Cleared';
  readonly count: number;
}

/** What an edit did. `shape` is the shape touched, `relative_size` = |after - before| / |before| over that part. */
export interface Edited {
  readonly reply: 'Edited';
  readonly site: string;
  readonly edit: string;
  readonly shape: readonly number[];
  readonly positions: readonly number[];
  readonly norm_before: Float;
  readonly norm_after: Float;
  readonly relative_size: Float | null;
  readonly entries_changed: number;
}

export interface Effect {
  readonly reply: 'Effect';
  readonly effect: EffectReading;
}

export interface Steered {
  readonly reply: 'Steered';
  readonly rule: RuleDescription;
  readonly existed: boolean;
}

export interface Inspected {
  readonly reply: 'Inspected';
  readonly snapshot: Snapshot;
}

export interface LensRead {
  readonly reply: 'LensRead';
  readonly site: string;
  readonly rows: readonly LensRow[];
}

/** `value` of the expression at the absolute `position`. */
export interface Evaluated {
  readonly reply: 'Evaluated';
  readonly value: boolean | number | Float | string;
  readonly site: string;
  readonly position: number;
}

export interface Watching {
  readonly reply: 'Watching';
  readonly watch: WatchDescription;
}

/** All recorded passes of a site, one value a pass, each with the absolute positions it covers. */
export interface WatchRead {
  readonly reply: 'WatchRead';
  readonly watch: WatchDescription;
  readonly axes: string;
  readonly values: readonly ArrayJson[];
  readonly positions: readonly (readonly number[])[];
}

export interface Logits {
  readonly reply: 'Logits';
  readonly logits: ArrayJson;
}

export interface HistoryRead {
  readonly reply: 'History';
  readonly stops: readonly StopDescription[];
  readonly present: number | null;
}

/** `transfer` is None when nothing had to move. */
export interface Swapped {
  readonly reply: 'Swapped';
  readonly session: SessionDescription;
  readonly transfer: Transfer | null;
}

/** `seconds` is 0 when they were there already. */
export interface WeightsMoved {
  readonly reply: 'WeightsMoved';
  readonly weights: WeightsStatistics;
  readonly seconds: Float;
}

/** Oldest first. The first number is more than one above `since` where older ones are not kept any more. */
export interface Copies {
  readonly reply: 'Copies';
  readonly copies: readonly LayerCopy[];
}

export interface CheckpointSaved {
  readonly reply: 'CheckpointSaved';
  readonly checkpoint: CheckpointDescription;
  readonly path: string;
}

export interface Checkpoints {
  readonly reply: 'Checkpoints';
  readonly checkpoints: readonly CheckpointDescription[];
}

export interface Noted {
  readonly reply: 'Noted';
}

export interface SessionOpened {
  readonly event: 'SessionOpened';
  readonly session: string;
}

export interface SessionClosed {
  readonly event: 'SessionClosed';
  readonly session: string;
}

export interface SessionRunning {
  readonly event: 'SessionRunning';
  readonly session: string;
}

/** `text` is what the streamed text gained; it may be empty while a character is incomplete. */
export interface TokenSampled {
  readonly event: 'TokenSampled';
  readonly session: string;
  readonly step: number;
  readonly token: number;
  readonly text: string;
}

export interface SessionPaused {
  readonly event: 'SessionPaused';
  readonly session: string;
  readonly site: string;
  readonly step: number;
  readonly reason: 'breakpoint' | 'step' | 'interrupt' | 'back' | 'fork';
}

export interface SessionFinished {
  readonly event: 'SessionFinished';
  readonly session: string;
  readonly reason: 'length' | 'eos' | 'stop_string' | 'context' | 'slab_full';
  readonly new_tokens: number;
}

export interface SessionFailed {
  readonly event: 'SessionFailed';
  readonly session: string;
  readonly code: string;
  readonly message: string;
}

export interface SessionSwapped {
  readonly event: 'SessionSwapped';
  readonly session: string;
  readonly transfer: Transfer;
}

/** Its breakpoints, rules, watches or holder are others than before. */
export interface SessionChanged {
  readonly event: 'SessionChanged';
  readonly session: string;
}

/** A kernel of this server. `state` is Jupyter's execution state: starting, idle, busy, restarting, dead... */
export interface KernelDescription {
  readonly id: string;
  readonly state: string;
}

/**
 * A session with what Jupyter knows of it. `notebook` is the contents path of the notebook that it belongs to,
 * `kernel` the kernel that holds it, both None where this server has none. `idle_since` in seconds since the epoch;
 * `described.idle_seconds` is as of the last change of anything else.
 */
export interface LiveSession {
  readonly described: SessionDescription;
  readonly label: string;
  readonly notebook: string | null;
  readonly kernel: KernelDescription | null;
  readonly idle_since: Float;
}

/**
 * An engine of the registry. `refused` cannot be spoken to, for `reason`; `description` is None until `ready`.
 * `model` is as it was asked for, `load` what `%djinn_load` is given to mean this engine; `started` in seconds since
 * the epoch.
 */
export interface EngineFound {
  readonly id: string;
  readonly model: string;
  readonly load: string;
  readonly pid: number;
  readonly host: string;
  readonly version: string;
  readonly started: Float;
  readonly state: 'connecting' | 'ready' | 'refused';
  readonly reason: string | null;
  readonly description: ModelDescription | null;
}

/** An engine with its books and its sessions by name. `statistics` is None until they were first read. */
export interface LiveEngine {
  readonly found: EngineFound;
  readonly statistics: EngineStatistics | null;
  readonly sessions: { readonly [name: string]: LiveSession };
}

/** The answer of GET engines; `version` is the server's own. */
export interface Engines {
  readonly version: string;
  readonly engines: readonly EngineFound[];
}

/** The engine has taken a move; its outcome comes over the WebSocket under the same number. */
export interface Accepted {
  readonly reply: 'Accepted';
  readonly move: number;
}

/** Tokens that a session sampled since the last delta, and the text that (at most the last 1000 of) them gave. */
export interface Sampled {
  readonly count: number;
  readonly step: number;
  readonly text: string;
}

/** What is other than before; what is left out is as before. A session that is null has been closed. */
export interface EngineChange {
  readonly found?: EngineFound;
  readonly statistics?: EngineStatistics;
  readonly sessions?: { readonly [name: string]: LiveSession | null };
  readonly sampled?: { readonly [name: string]: Sampled };
}

/** The end of an accepted move: Paused, Finished or Failed. `request` is the verb's name. */
export interface LiveOutcome {
  readonly live: 'outcome';
  readonly sequence: number;
  readonly engine: string;
  readonly session: string;
  readonly request: string;
  readonly move: number;
  readonly reply: WireReply;
}

/**
 * All there is, at each connect and after a gap: what was known before is to be forgotten. `outcomes` are the last
 * ones, oldest first, which somebody who was away may have missed. `at` in seconds since the epoch.
 */
export interface LiveSnapshot {
  readonly live: 'snapshot';
  readonly sequence: number;
  readonly at: Float;
  readonly version: string;
  readonly engines: { readonly [name: string]: LiveEngine };
  readonly outcomes: readonly LiveOutcome[];
}

/** What has changed since the message before. `gone` says of each engine that has ended why. */
export interface LiveDelta {
  readonly live: 'delta';
  readonly sequence: number;
  readonly at: Float;
  readonly appeared: { readonly [name: string]: LiveEngine };
  readonly changed: { readonly [name: string]: EngineChange };
  readonly gone: { readonly [name: string]: string };
}

/** An engine's event, as it came. TokenSampled is not among them: see `EngineChange.sampled`. */
export interface LiveEvent {
  readonly live: 'event';
  readonly sequence: number;
  readonly engine: string;
  readonly event: WireEvent;
}

/** The notebook that this browser window shows now, by its contents path; None for none. */
export interface Focus {
  readonly say: 'focus';
  readonly notebook: string | null;
}

/** A message was missed: send a snapshot. */
export interface Resync {
  readonly say: 'resync';
}

export type Edit =
  | ScaleEdit
  | AddEdit
  | SetEdit
  | ZeroEdit
  | ClampEdit
  | ProjectOutEdit
  | PatchFromEdit;

export type WireRequest =
  | Ping
  | ListModules
  | Tokenize
  | Detokenize
  | ReadStatistics
  | ListSessions
  | Shutdown
  | Open
  | Describe
  | Close
  | Fork
  | Run
  | Resume
  | Step
  | Pause
  | Back
  | SetBreakpoint
  | EnableBreakpoint
  | ClearBreakpoints
  | ApplyEdit
  | RevertEdits
  | MeasureEffect
  | Steer
  | Unsteer
  | Inspect
  | Lens
  | Evaluate
  | Watch
  | Unwatch
  | ReadWatch
  | ReadStop
  | ReadLogits
  | ReadHistory
  | SwapOut
  | SwapIn
  | Nap
  | Wake
  | ReadCopies
  | SaveCheckpoint
  | RestoreCheckpoint
  | ListCheckpoints
  | DropCheckpoint
  | AcceptRecomputed;

export type WireReply =
  | Failed
  | Welcome
  | Departed
  | Pong
  | Modules
  | Tokenized
  | Statistics
  | Sessions
  | ShuttingDown
  | Opened
  | Described
  | Detached
  | Closed
  | Pausing
  | Paused
  | Finished
  | BreakpointSet
  | Cleared
  | Edited
  | Effect
  | Steered
  | Inspected
  | LensRead
  | Evaluated
  | Watching
  | WatchRead
  | Logits
  | HistoryRead
  | Swapped
  | WeightsMoved
  | Copies
  | CheckpointSaved
  | Checkpoints
  | Noted;

export type WireEvent =
  | SessionOpened
  | SessionClosed
  | SessionRunning
  | TokenSampled
  | SessionPaused
  | SessionFinished
  | SessionFailed
  | SessionSwapped
  | SessionChanged;

export type Live =
  | LiveSnapshot
  | LiveDelta
  | LiveEvent
  | LiveOutcome;

export type Said =
  | Focus
  | Resync;

/** What each request is answered with; `Failed` comes as an error. */
export interface Answers {
  readonly Ping: Pong;
  readonly ListModules: Modules;
  readonly Tokenize: Tokenized;
  readonly Detokenize: Tokenized;
  readonly ReadStatistics: Statistics;
  readonly ListSessions: Sessions;
  readonly Shutdown: ShuttingDown;
  readonly Open: Opened;
  readonly Describe: Described;
  readonly Close: Closed;
  readonly Fork: Opened;
  readonly Run: Accepted;
  readonly Resume: Accepted;
  readonly Step: Accepted;
  readonly Pause: Pausing;
  readonly Back: Accepted;
  readonly SetBreakpoint: BreakpointSet;
  readonly EnableBreakpoint: BreakpointSet;
  readonly ClearBreakpoints: Cleared;
  readonly ApplyEdit: Edited;
  readonly RevertEdits: Paused;
  readonly MeasureEffect: Effect;
  readonly Steer: Steered;
  readonly Unsteer: Cleared;
  readonly Inspect: Inspected;
  readonly Lens: LensRead;
  readonly Watch: Watching;
  readonly Unwatch: Cleared;
  readonly ReadWatch: WatchRead;
  readonly ReadStop: Paused;
  readonly ReadLogits: Logits;
  readonly ReadHistory: HistoryRead;
  readonly SwapOut: Swapped;
  readonly SwapIn: Swapped;
  readonly Nap: WeightsMoved;
  readonly Wake: WeightsMoved;
  readonly ReadCopies: Copies;
  readonly SaveCheckpoint: CheckpointSaved;
  readonly RestoreCheckpoint: Opened;
  readonly ListCheckpoints: Checkpoints;
  readonly DropCheckpoint: Cleared;
  readonly Evaluate: Evaluated;
  readonly AcceptRecomputed: Described;
}
