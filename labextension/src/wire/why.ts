/* Written by docs/write_reference.py from the structs of the package; change those, not this file. */

import {
  Float,
} from './values';

import {
  Circumstances,
} from './looks';

import {
  ScoreSide,
} from './readings';

/**
 * The score of a head for a pair of positions: `score` is `scale` times the product of query and key as attention
 * gets them, before a soft-cap, a bias of positions and a mask; `given` is what the softmax gets, and `weight` what it
 * returns. `tokens` and `texts` are those of the sequence, `made` has what else the numbers follow from.
 */
export interface ScoreExplained {
  readonly reply: 'ScoreExplained';
  readonly tokens: readonly number[];
  readonly texts: readonly string[];
  readonly query: number;
  readonly key: number;
  readonly score: Float;
  readonly scale: Float;
  readonly given: Float;
  readonly weight: Float;
  readonly by_key: ScoreSide;
  readonly by_query: ScoreSide;
  readonly made: Circumstances;
  readonly notes: readonly string[];
  readonly not_kept: string | null;
}
