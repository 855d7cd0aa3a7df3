/* Written by docs/write_reference.py from the structs of the package; change those, not this file. */

import {
  ArrayJson,
  Float,
} from './values';

import {
  Circumstances,
} from './looks';

export type Kind = 'previous' | 'duplicate' | 'induction';

/**
 * `scores` [3, layers, heads], float64: the mean attention of a position to the one before it, to earlier positions
 * with the same token, and to those that follow these (induction), over the `counted` positions of all sequences with
 * such a target; NaN where there are none. `layers` are those with attention patterns. `patterns` [layers, heads,
 * queries, keys], fp32, are of the first sequence, whose tokens are `texts`; blocks of `pooled` positions have their
 * largest weight. `lines` are the tokens of each sequence, and `made` what else the scores follow from.
 */
export interface HeadsRead {
  readonly reply: 'HeadsRead';
  readonly layers: readonly number[];
  readonly scores: ArrayJson;
  readonly counted: readonly number[];
  readonly texts: readonly string[];
  readonly patterns: ArrayJson | null;
  readonly pooled: number;
  readonly lines: readonly (readonly number[])[];
  readonly made: Circumstances;
  readonly not_kept: string | null;
}

/**
 * The attention of a head from one token (`query`, its id) to another (`key`), at the `count` pairs of positions
 * with these tokens: their weights' sum, `summed`.
 */
export interface TokenPair {
  readonly query: number;
  readonly key: number;
  readonly count: number;
  readonly summed: Float;
}

/**
 * One strong `weight`, at `query` and `key` of a line, and the query's `weights` to the positions from `first` up
 * to itself.
 */
export interface HeadExample {
  readonly line: number;
  readonly query: number;
  readonly key: number;
  readonly weight: Float;
  readonly first: number;
  readonly weights: readonly Float[];
}

/** An entry of an OV circuit: what attending to a `given` token adds to the logit of the token `made`. */
export interface VocabularyPair {
  readonly given: number;
  readonly made: number;
  readonly value: Float;
}

/**
 * The largest entries of W_E W_V W_O W_U of a head, over all pairs of tokens. `copying` is the sum of its
 * eigenvalues by the sum of their sizes, from -1 to 1: above zero where tokens raise their own logits (Elhage et al.
 * 2021). `notes` say what is folded in.
 */
export interface OVCircuit {
  readonly pairs: readonly VocabularyPair[];
  readonly copying: Float;
  readonly notes: readonly string[];
}

/**
 * The attention of a head over `lines`. The key at the first position is told apart: `first_share` is the mean
 * weight of the `queries` behind it to it, None without any. All other weights are in pairs of tokens: those with the
 * largest `summed` weights, those with the largest `mean` of those met at least twice, and the strongest single
 * `examples`, one for each pair of tokens. `circuit` is None for the reason `unread`. `spelled` has the texts of all
 * these tokens, and `made` what else the numbers follow from.
 */
export interface HeadRead {
  readonly reply: 'HeadRead';
  readonly layer: number;
  readonly head: number;
  readonly lines: readonly (readonly number[])[];
  readonly queries: number;
  readonly first_share: Float | null;
  readonly summed: readonly TokenPair[];
  readonly mean: readonly TokenPair[];
  readonly examples: readonly HeadExample[];
  readonly circuit: OVCircuit | null;
  readonly unread: string;
  readonly spelled: readonly (readonly number[])[];
  readonly made: Circumstances;
  readonly notes: readonly string[];
  readonly not_kept: string | null;
}
