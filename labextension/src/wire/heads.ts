/* Written by docs/write_reference.py from the structs of the package; change those, not this file. */

import {
  ArrayJson,
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
