/* Written by docs/write_reference.py from the structs of the package; change those, not this file. */

import {
  ArrayJson,
  Float,
} from './values';

export type Axis = 'layer' | 'position' | 'head' | 'coef';

/** The mean over the positions of the clean line, of the line itself where there is none. */
export interface MeanEdit {
  readonly edit: 'mean';
}

/** The value at another position of the clean line, of the line itself where there is none; drawn by the seed. */
export interface ResampleEdit {
  readonly edit: 'resample';
}

/**
 * Normal noise on what enters the first layer at `positions`, of `scale` times the standard deviation that the line
 * has there; drawn by the sweep's seed.
 */
export interface Noise {
  readonly positions: readonly number[];
  readonly scale: Float;
}

/**
 * `values` is float64, with an axis for each of `over`, whose places are `layers`, `positions`, `heads` and
 * `coefs`; `texts` are the corrupted line's tokens. `computed` cells were computed; in the others the edit changes
 * nothing, and their value is `corrupted`, the metric of the line without an edit. `clean` is that of the clean line.
 * Cells numbered `rechecked` (row by row) were computed again alone, one of them where the edit changes nothing;
 * `largest_difference` is what the computed ones differed by, None where each was computed alone anyway, and `mode`
 * says so.
 */
export interface Swept {
  readonly reply: 'Swept';
  readonly site: string;
  readonly over: readonly ('layer' | 'position' | 'head' | 'coef')[];
  readonly layers: readonly number[];
  readonly positions: readonly number[];
  readonly heads: readonly number[];
  readonly texts: readonly string[];
  readonly metric: string;
  readonly edit: string;
  readonly values: ArrayJson;
  readonly corrupted: Float;
  readonly clean: Float | null;
  readonly mode: 'fast' | 'exact';
  readonly seed: number;
  readonly computed: number;
  readonly rechecked: readonly number[];
  readonly largest_difference: Float | null;
  readonly tolerance: Float;
  readonly notes: readonly string[];
  readonly coefs: readonly Float[];
  readonly not_kept: string | null;
}
