/* Written by docs/write_reference.py from the structs of the package; change those, not this file. */

import {
  ArrayJson,
  Float,
} from './values';

import {
  BreakpointDescription,
  EngineStatistics,
  ModuleDescription,
  StopDescription,
  StopIdentity,
  TopToken,
} from './nouns';

import {
  Branch,
  Influences,
} from './readings';

import {
  RuleDescription,
} from './rules';

export interface Modules {
  readonly reply: 'Modules';
  readonly modules: readonly ModuleDescription[];
  readonly not_kept: string | null;
}

export interface Tokenized {
  readonly reply: 'Tokenized';
  readonly tokens: readonly number[];
  readonly texts: readonly string[];
  readonly text: string;
  readonly not_kept: string | null;
}

export interface Statistics {
  readonly reply: 'Statistics';
  readonly statistics: EngineStatistics;
  readonly not_kept: string | null;
}

/** `sessions_kept` are in the journal and come back with the next engine of this model. */
export interface ShuttingDown {
  readonly reply: 'ShuttingDown';
  readonly sessions_lost: readonly string[];
  readonly sessions_kept: readonly string[];
  readonly not_kept: string | null;
}

/**
 * The run will stop at its next layer boundary, or the work reply with its parts; `was_running` is False when there
 * was nothing to stop.
 */
export interface Pausing {
  readonly reply: 'Pausing';
  readonly was_running: boolean;
  readonly not_kept: string | null;
}

/**
 * A forward pass that stands still.
 *
 * `layer` layers have run in this pass, layers `layer`.. have not (a stop inside layer n has run n whole layers).
 * `step` 0 is the prompt, n the n-th generated token. `positions` are the absolute positions of this pass.
 * `site` is as it was named, and `shape`, `norms` and `values` are of its selected heads or features. `norms` are L2
 * norms at each position of the pass, over all other axes; `values` the numbers themselves where a position has one
 * alone, as one feature does, else None: what `norm` and `value` are in a condition. `matched` is the position
 * for which the breakpoint's condition held. `also` names further breakpoints met at the same place. `edits` are those
 * of this very stop, as a person would say them; `influences` all that makes it other than the model alone would.
 * `texts` are single tokens, bytes of a longer character as `<0xD9>`; `prompt_text` and `new_text`, put together, are
 * the line decoded as a whole. `log_probabilities` are those of the new tokens under the model's own fp32 logits,
 * before temperature and the like; None where they were not kept.
 */
export interface Paused {
  readonly reply: 'Paused';
  readonly session: string;
  readonly stop: StopIdentity;
  readonly site: string;
  readonly reason: 'breakpoint' | 'step' | 'interrupt' | 'back' | 'fork' | 'quota';
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
  readonly prompt_text: string;
  readonly new_text: string;
  readonly log_probabilities: readonly (Float | null)[];
  readonly shape: readonly number[];
  readonly axes: string;
  readonly dtype: string;
  readonly norms: readonly Float[];
  readonly edits: readonly string[];
  readonly history_index: number;
  readonly history_length: number;
  readonly layers_run: number;
  readonly influences: Influences;
  readonly values: readonly Float[] | null;
  readonly not_kept: string | null;
}

/**
 * A run that reached its end. `tokens` are the new ids of this run, over all its stops; `top` the distribution they
 * ended with: of the position after the last token fed. `layers_run` and `passes` count
 * the way that led to this result, from the run's beginning on: what was run and then gone back on is not in them.
 * `ignored_defaults` are the model's own generation settings that were not applied. `texts` are single tokens, bytes
 * of a longer character as `<0xD9>`; `prompt_text` and `text`, put together, are the line decoded as a whole.
 * `log_probabilities` are as in Paused. `shared`: passes shared with other runs; `note`: why `fast` shared none, and
 * whether the tokenizer's first token stands twice. `largest_difference`: of shared logits, where a pass of this
 * row was drawn and computed again alone.
 */
export interface Finished {
  readonly reply: 'Finished';
  readonly session: string;
  readonly stop: StopIdentity;
  readonly reason: 'length' | 'eos' | 'stop_string' | 'context' | 'slab_full';
  readonly detail: string | null;
  readonly tokens: readonly number[];
  readonly texts: readonly string[];
  readonly text: string;
  readonly prompt_tokens: readonly number[];
  readonly prompt_texts: readonly string[];
  readonly prompt_text: string;
  readonly log_probabilities: readonly (Float | null)[];
  readonly top: readonly TopToken[];
  readonly rules: readonly RuleDescription[];
  readonly ignored_defaults: readonly string[];
  readonly layers_run: number;
  readonly passes: number;
  readonly shared: number;
  readonly note: string | null;
  readonly largest_difference: Float | null;
  readonly not_kept: string | null;
}

export interface BreakpointSet {
  readonly reply: 'BreakpointSet';
  readonly breakpoint: BreakpointDescription;
  readonly existed: boolean;
  readonly not_kept: string | null;
}

export interface Cleared {
  readonly reply: 'Cleared';
  readonly count: number;
  readonly not_kept: string | null;
}

/**
 * The effect of an edit. `shape` is the shape touched, `relative_size` = |after - before| / |before| over that
 * part. `stop` has the edition that it made.
 */
export interface Edited {
  readonly reply: 'Edited';
  readonly stop: StopIdentity;
  readonly site: string;
  readonly edit: string;
  readonly shape: readonly number[];
  readonly positions: readonly number[];
  readonly norm_before: Float;
  readonly norm_after: Float;
  readonly relative_size: Float | null;
  readonly entries_changed: number;
  readonly not_kept: string | null;
}

export interface Steered {
  readonly reply: 'Steered';
  readonly rule: RuleDescription;
  readonly existed: boolean;
  readonly not_kept: string | null;
}

/** `value` of the expression at the absolute `position`. */
export interface Evaluated {
  readonly reply: 'Evaluated';
  readonly stop: StopIdentity;
  readonly value: boolean | number | Float | string;
  readonly site: string;
  readonly position: number;
  readonly not_kept: string | null;
}

export interface Logits {
  readonly reply: 'Logits';
  readonly stop: StopIdentity;
  readonly logits: ArrayJson;
  readonly not_kept: string | null;
}

export interface HistoryRead {
  readonly reply: 'History';
  readonly stops: readonly StopDescription[];
  readonly present: number | null;
  readonly not_kept: string | null;
}

/** One branch for each session, in the order of opening: a fork after its parent, where that is still there. */
export interface Tree {
  readonly reply: 'Tree';
  readonly branches: readonly Branch[];
  readonly not_kept: string | null;
}

export interface Noted {
  readonly reply: 'Noted';
  readonly not_kept: string | null;
}
