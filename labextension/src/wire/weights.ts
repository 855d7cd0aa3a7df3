/* Written by docs/write_reference.py from the structs of the package; change those, not this file. */

import {
  ArrayJson,
} from './values';

import {
  LayerCopy,
} from './nouns';

/**
 * `values` as the points have it: `x @ values` is the next point, apart from biases. A head or neuron chosen alone
 * has no axis of its own.
 */
export interface WeightRead {
  readonly reply: 'WeightRead';
  readonly name: string;
  readonly values: ArrayJson;
  readonly not_kept: string | null;
}

/** Oldest first. The first number is more than one above `since` where older ones are not kept any more. */
export interface Copies {
  readonly reply: 'Copies';
  readonly copies: readonly LayerCopy[];
  readonly not_kept: string | null;
}
