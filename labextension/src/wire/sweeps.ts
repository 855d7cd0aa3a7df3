/* Written by docs/write_reference.py from the structs of the package; change those, not this file. */

import {
  ArrayJson,
  Float,
} from './values';

export type Axis = 'point' | 'layer' | 'position' | 'head' | 'neuron' | 'coef';

export type EditedLine = 'corrupted' | 'clean';

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

/** A sweep cut short: these cells of the sweep of this `recipe` have `values`, one for each metric. */
export interface Continued {
  readonly recipe: string;
  readonly cells: readonly number[];
  readonly values: readonly (readonly Float[])[];
}

/**
 * Estimate each cell's change of the metric by gradients, to first order: the change at its places times the
 * metric's gradient there, in the corrupted line, or as the mean over `steps` points of the way to the clean one.
 */
export interface Estimate {
  readonly steps: number;
}

/** A value for each metric, in the order asked. */
export interface MetricsRead {
  readonly reply: 'MetricsRead';
  readonly values: readonly Float[];
  readonly not_kept: string | null;
}

/**
 * One metric of a sweep's cells. `values` is float64, with an axis for each of `over`; `corrupted` is that of the
 * corrupted line without an edit, `clean` that of the clean line. `largest_difference` is what cells computed together
 * differed by from the same computed alone, of those that were rechecked; None where each was computed alone.
 */
export interface Measured {
  readonly metric: string;
  readonly values: ArrayJson;
  readonly corrupted: Float;
  readonly clean: Float | null;
  readonly largest_difference: Float | null;
  readonly tolerance: Float;
}

/**
 * `measured` has each metric, in the order asked. `places` are those along each axis of `over`, which has every
 * axis twice where cells are pairs of cells; `texts` are the edited line's tokens. `computed` cells were computed;
 * in the others the edit changes nothing. Cells numbered `rechecked` (row by row) were computed again alone, of
 * the first pair one where the edit changes nothing; there are none where each was computed alone anyway, and `mode`
 * says so. By `recipe` another sweep is known to go on from this one. With an `estimate` the values are changes.
 */
export interface Swept {
  readonly reply: 'Swept';
  readonly site: string;
  readonly over: readonly ('point' | 'layer' | 'position' | 'head' | 'neuron' | 'coef')[];
  readonly places: readonly (readonly (number | Float | string)[])[];
  readonly texts: readonly string[];
  readonly edit: string;
  readonly measured: readonly Measured[];
  readonly mode: 'fast' | 'exact';
  readonly seed: number;
  readonly computed: number;
  readonly rechecked: readonly number[];
  readonly notes: readonly string[];
  readonly windows: readonly (readonly ('point' | 'layer' | 'position' | 'head' | 'neuron' | 'coef')[])[];
  readonly in_pairs: boolean;
  readonly receivers: readonly string[];
  readonly into: 'corrupted' | 'clean';
  readonly recipe: string;
  readonly estimate: Estimate | null;
  readonly not_kept: string | null;
}
