/* Written by docs/write_reference.py from the structs of the package; change those, not this file. */

import {
  ArrayJson,
  Float,
} from './values';

import {
  Edit,
  RuleDescription,
} from './edits';

import {
  BreakpointDescription,
  Sampling,
  SamplingChanges,
  Snapshot,
  StopIdentity,
  TopToken,
} from './nouns';

import {
  Influences,
} from './readings';

/**
 * A stopped forward pass.
 *
 * `layer` layers have run in this pass, layers `layer`.. have not (a stop inside layer n has run n whole layers).
 * `step` 0 is the prompt, n the n-th generated token. `positions` are the absolute positions of this pass. `site` is
 * in the caller's spelling, and `shape`, `norms` and `values` are of its selected heads or features. `norms` are L2
 * norms at each position of the pass, over all other axes. `values` are the numbers by position where each position
 * has one (a single feature), else None. Conditions read these as `norm` and `value`. `matched` is the position for
 * which the breakpoint's condition was true. `also` names further breakpoints at the same place. `edits` are the edits
 * of this stop in words; `influences` are all differences from the unmodified model. `texts` are single tokens, bytes
 * of a longer character as `<0xD9>`; `prompt_text` and `new_text` together are the tokens decoded as a whole.
 * `log_probabilities` are those of the new tokens under the model's own fp32 logits, before temperature and other
 * sampling settings; None where they were not kept.
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
 * A run that reached its end. `tokens` are the new ids of this run, over all its stops; `top` the final
 * distribution: of the position after the last token fed. `layers_run` and `passes` count the work of this result from
 * the run's beginning, without work that `back` undid. `ignored_defaults` are the model's own generation settings that
 * were not applied. `texts` are single tokens, bytes of a longer character as `<0xD9>`; `prompt_text` and `text`
 * together are the tokens decoded as a whole. `log_probabilities` are as in Paused. `shared`: passes shared with other
 * runs. `note`: why `fast` shared none, and whether the tokenizer's first token appears twice. `largest_difference`:
 * of shared logits from those of a randomly chosen pass of this row, computed again alone.
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

/**
 * Run a prompt (text or token ids) until a stop or the end.
 *
 * The tokens start afresh, unless `extend`: then the prompt (may be empty) is appended to the present tokens. After a
 * run for no new token an empty prompt works too: the next token is drawn from the last logits. `free` ignores
 * breakpoints. `fast` shares passes of generated tokens with other such runs; last bits may differ.
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
  readonly mode?: 'fast' | 'exact';
}

/** Go on from the stop. `mode` None keeps the run's mode; without `sampling` the run keeps its own. */
export interface Resume {
  readonly request: 'Resume';
  readonly session: string;
  readonly free?: boolean;
  readonly mode?: 'fast' | 'exact' | null;
  readonly sampling?: SamplingChanges;
  readonly stop?: StopIdentity | null;
}

/**
 * By layers, by tokens (to the same site of a later pass), or by points: to the next point of the layer that the
 * pass is before or inside, at its end to the layer's output.
 */
export interface Step {
  readonly request: 'Step';
  readonly session: string;
  readonly count?: number;
  readonly by?: 'layer' | 'token' | 'point';
  readonly stop?: StopIdentity | null;
}

export interface Back {
  readonly request: 'Back';
  readonly session: string;
  readonly count?: number;
  readonly by?: 'stop' | 'layer' | 'token';
  readonly stop?: StopIdentity | null;
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
 * Stop a run at its next layer boundary; end a measurement of edges, an attribution graph or a reading of heads
 * with its finished parts.
 */
export interface Pause {
  readonly request: 'Pause';
  readonly session: string;
}

/** The present stop once more, as reported. */
export interface ReadStop {
  readonly request: 'ReadStop';
  readonly session: string;
}

export interface Logits {
  readonly reply: 'Logits';
  readonly stop: StopIdentity;
  readonly logits: ArrayJson;
  readonly not_kept: string | null;
}

/** fp32 logits of the last position of the last finished pass. */
export interface ReadLogits {
  readonly request: 'ReadLogits';
  readonly session: string;
}

/** A value for each metric, in the order asked. */
export interface MetricsRead {
  readonly reply: 'MetricsRead';
  readonly values: readonly Float[];
  readonly not_kept: string | null;
}

export interface BreakpointSet {
  readonly reply: 'BreakpointSet';
  readonly breakpoint: BreakpointDescription;
  readonly existed: boolean;
  readonly not_kept: string | null;
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
 * The values at the requested sites that the pass reached, in the order of the request; `logits` are fp32
 * [positions of the pass, vocabulary].
 */
export interface PassRead {
  readonly reply: 'PassRead';
  readonly stop: StopIdentity;
  readonly sites: readonly string[];
  readonly values: readonly ArrayJson[];
  readonly logits: ArrayJson | null;
  readonly not_kept: string | null;
}

/**
 * Read the values at `sites` of the stopped pass up to the stop; with `ahead` also of its continuation with the
 * edits so far, and with `logits` those of all its positions. A given `value` replaces the stopped one at `positions`
 * in the continuation, as in ResumeWith; the stop itself stays unchanged.
 */
export interface ReadPass {
  readonly request: 'ReadPass';
  readonly session: string;
  readonly sites?: readonly string[];
  readonly ahead?: boolean;
  readonly logits?: boolean;
  readonly value?: ArrayJson | null;
  readonly positions?: readonly number[] | null;
}

/**
 * The stop that a ResumeWith reached: the value there, `step` and `positions` of its pass, as in Paused, and the
 * tokens that the run has `drawn` so far.
 */
export interface Reached {
  readonly reply: 'Reached';
  readonly snapshot: Snapshot;
  readonly step: number;
  readonly positions: readonly number[];
  readonly drawn: readonly number[];
  readonly not_kept: string | null;
}

export interface RevertEdits {
  readonly request: 'RevertEdits';
  readonly session: string;
  readonly stop?: StopIdentity | null;
}

/** Turn an edit of the present stop off or on: the stopped value is then computed with the other edits only. */
export interface EnableEdit {
  readonly request: 'EnableEdit';
  readonly session: string;
  readonly number: number;
  readonly enabled: boolean;
  readonly stop?: StopIdentity | null;
}

/** `number` None removes all rules. */
export interface Unsteer {
  readonly request: 'Unsteer';
  readonly session: string;
  readonly number?: number | null;
}

/**
 * The effect of an edit. `shape` is the changed shape, `relative_size` = |after - before| / |before| over that
 * part. `stop` has the new edition.
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

/**
 * Change the stopped value. `site` must be the stopped one (with any selector) or None. `positions` are absolute,
 * negative from the end of the pass, None for the whole pass. `words` describe the edit.
 */
export interface ApplyEdit {
  readonly request: 'ApplyEdit';
  readonly session: string;
  readonly edit: Edit;
  readonly site?: string | null;
  readonly positions?: readonly number[] | null;
  readonly words?: string | null;
  readonly stop?: StopIdentity | null;
}

/** Turn a steering rule off or on without ending it, from the next pass (or the rest of this one) on. */
export interface EnableRule {
  readonly request: 'EnableRule';
  readonly session: string;
  readonly number: number;
  readonly enabled: boolean;
}

/**
 * Apply `edit` at every pass that reaches `site`, which may be a point of every layer (`resid_post.*`): at these
 * `positions` (negative from the end of each pass) and all from `onward` on, or the whole pass; in passes over the
 * prompt or over new tokens (`on`), or both; where the condition `when` is true at the position. An array with a row
 * for each of several `positions` gives each its row. `words` describe the edit.
 */
export interface Steer {
  readonly request: 'Steer';
  readonly session: string;
  readonly site: string;
  readonly edit: Edit;
  readonly positions?: readonly number[] | null;
  readonly onward?: number | null;
  readonly on?: 'prompt' | 'new' | null;
  readonly when?: string | null;
  readonly words?: string | null;
}
