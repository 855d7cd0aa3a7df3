/* Written by docs/write_reference.py from the structs of the package; change those, not this file. */

import {
  ArrayJson,
  Float,
} from './values';

import {
  Circumstances,
} from './circumstances';

/**
 * `tokens` of each prompt. `values`, fp32, of all prompts one after the other: the negative log-likelihood of each
 * token but the first, or logits [positions, vocabulary]. `largest_difference` is by how much losses computed together
 * differed from the same computed alone, of those that were; None where each prompt was computed alone, as `mode`
 * says then, for the reasons in `notes`. `seed` is the request's, and `made` what else the values follow from.
 */
export interface Scored {
  readonly reply: 'Scored';
  readonly tokens: readonly (readonly number[])[];
  readonly values: ArrayJson;
  readonly made: Circumstances;
  readonly seed: number;
  readonly mode: 'fast' | 'exact';
  readonly largest_difference: Float | null;
  readonly notes: readonly string[];
  readonly not_kept: string | null;
}
