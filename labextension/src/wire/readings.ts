/* Written by docs/write_reference.py from the structs of the package; change those, not this file. */

import {
  ArrayJson,
  Float,
} from './values';

import {
  Origin,
  StopDescription,
  StopIdentity,
  TopToken,
} from './nouns';

export type Applies = 'applied' | 'ahead' | 'next pass' | 'other positions' | 'other passes' | 'condition' | 'refused' | 'not so far' | 'off';

/**
 * The change of a value by an edit (`rule` is None) or a steering rule, in words. `relative_size` is
 * |after - before| / |before| of the part it touched; None where that part was zero, or where it was not measured.
 */
export interface Change {
  readonly what: string;
  readonly rule: number | null;
  readonly relative_size: Float | null;
}

/**
 * A value of the stopped pass that is not what the model computed there, with what made it, in order. `changes` is
 * empty in a session that was kept by a version which did not note them.
 */
export interface Override {
  readonly site: string;
  readonly changes: readonly Change[];
}

/**
 * A steering rule of the session. `applies`: whether it was `applied` in the stopped pass, lies `ahead` of the
 * stop, was set after the pass had gone by (`next pass`), names `other positions` or `other passes` (of the prompt, of
 * new tokens), has a `condition` that held nowhere, was `refused` by a value that it does not fit (`trouble` says
 * why), was `not so far` met within the layer of the stop, or is `off`. `relative_size` is that of the stopped pass,
 * at its first site. A rule that is not `enabled` was `applied` where it was turned off after the pass had gone by.
 */
export interface RuleAtStop {
  readonly number: number;
  readonly site: string;
  readonly what: string;
  readonly applies: 'applied' | 'ahead' | 'next pass' | 'other positions' | 'other passes' | 'condition' | 'refused' | 'not so far' | 'off';
  readonly relative_size: Float | null;
  readonly enabled: boolean;
  readonly trouble: string | null;
}

/**
 * An edit made at the stop itself; one that is not `enabled` is turned off and has no part in the value. Its number
 * counts the edits of the stop from 1. `relative_size` is |after - before| / |before| of the part it touched, as it
 * was when it was last applied; None where that part was zero.
 */
export interface EditAtStop {
  readonly number: number;
  readonly site: string;
  readonly what: string;
  readonly relative_size: Float | null;
  readonly enabled: boolean;
}

/**
 * Positions [start, end) that were fed under rules or with edits: their keys and values, and what was sampled after
 * them, are not the model's own.
 */
export interface EarlierPasses {
  readonly start: number;
  readonly end: number;
  readonly changes: readonly string[];
}

/**
 * All that makes a stop differ from the unmodified model, and the edits and rules that are turned off. `adapter` is
 * the one that the session computes with.
 */
export interface Influences {
  readonly rules: readonly RuleAtStop[];
  readonly overrides: readonly Override[];
  readonly earlier: readonly EarlierPasses[];
  readonly edits: readonly EditAtStop[];
  readonly adapter: string | null;
}

/**
 * The stops of one session, oldest first, and where it stands among them: `present` is an index, None where it runs
 * or has finished; `state` says which. Stops that it shares with another session have the same numbers there.
 * `dropped` older ones are not kept any more, or not told: a tree has some ten thousand. `tokens` and `text`: how long
 * its line is, and its last tokens as text.
 */
export interface Branch {
  readonly session: string;
  readonly state: 'idle' | 'running' | 'paused' | 'closed';
  readonly stops: readonly StopDescription[];
  readonly present: number | null;
  readonly tokens: number;
  readonly text: string;
  readonly forked_from: Origin | null;
  readonly stop: StopIdentity | null;
  readonly dropped: number;
}

/** The part of a logit (or of a difference of two) that one module's output, or one head of it, adds. */
export interface Contribution {
  readonly point: string;
  readonly layer: number;
  readonly head: number | null;
  readonly value: Float;
}

/** The parts that the neurons of one layer's MLP add, float64 [neurons]: what its last map makes of each. */
export interface NeuronParts {
  readonly layer: number;
  readonly values: ArrayJson;
}

/** One token of the next-token distribution without (`before`) and with (`after`) the edits of the stop. */
export interface TokenShift {
  readonly token: number;
  readonly text: string;
  readonly probability_before: Float;
  readonly probability_after: Float;
  readonly logit_before: Float;
  readonly logit_after: Float;
}

/**
 * The next-token distribution without and with the edits of the present stop. `kl` in nats, KL(with || without).
 * `shifts` are the tokens of either head, the most probable with the edits first; `chosen` those that were asked
 * for.
 */
export interface EffectReading {
  readonly before: readonly TopToken[];
  readonly after: readonly TopToken[];
  readonly kl: Float;
  readonly top1_changed: boolean;
  readonly logit_difference_norm: Float;
  readonly shifts: readonly TokenShift[];
  readonly chosen: readonly TokenShift[];
}
