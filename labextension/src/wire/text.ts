/* Written by docs/write_reference.py from the structs of the package; change those, not this file. */

import {
  ArrayJson,
} from './values';

import {
  Circumstances,
} from './looks';

import {
  LensRow,
} from './nouns';

export type Of = 'value' | 'norm' | 'component';

/**
 * The `tokens` and `texts` of a text; positions in the `generated` spans [start, end) were chosen by the model.
 *
 * `log_probabilities` [T - 1], fp32, are those of each token but the first. Row t of the others is about the next
 * token behind position t: its `entropies` [T], fp32, in nats; `metrics` [T], float64; and its most probable tokens,
 * in `rows`. `site_values` [T], fp32, are of the position itself: the value of a site, its norm, or its component
 * along a direction, as `of` says. `made` has what else the numbers follow from.
 */
export interface TextMeasured {
  readonly reply: 'TextMeasured';
  readonly tokens: readonly number[];
  readonly texts: readonly string[];
  readonly generated: readonly (readonly number[])[];
  readonly log_probabilities: ArrayJson;
  readonly entropies: ArrayJson;
  readonly rows: readonly LensRow[];
  readonly made: Circumstances;
  readonly metrics: ArrayJson | null;
  readonly site_values: ArrayJson | null;
  readonly of: 'value' | 'norm' | 'component' | null;
  readonly not_kept: string | null;
}

/**
 * The lens of `sites` [S] over a text [T]: `top_tokens` [S, T, k], int32, with their `top_probabilities`, fp32,
 * and the `entropies` [S, T] of the distributions behind each position, in nats. `next_probabilities` [S, T - 1] are
 * those of the text's own next token, `chosen` [S, T, tokens] those of the requested tokens. `spelled` has the texts
 * of all these tokens. `tokens`, `texts`, `generated` and `made` are as in TextMeasured.
 */
export interface TextLensRead {
  readonly reply: 'TextLensRead';
  readonly tokens: readonly number[];
  readonly texts: readonly string[];
  readonly generated: readonly (readonly number[])[];
  readonly sites: readonly string[];
  readonly top_tokens: ArrayJson;
  readonly top_probabilities: ArrayJson;
  readonly entropies: ArrayJson;
  readonly next_probabilities: ArrayJson;
  readonly chosen: ArrayJson;
  readonly chosen_tokens: readonly number[];
  readonly spelled: readonly (readonly number[])[];
  readonly made: Circumstances;
  readonly not_kept: string | null;
}
