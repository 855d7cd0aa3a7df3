/* Written by docs/write_reference.py from the structs of the package; change those, not this file. */

import {
  ArrayJson,
  Float,
} from './values';

import {
  StopIdentity,
} from './nouns';

/**
 * Mean, standard deviation (over all, not one less), lowest, highest and L2 norm of numbers, computed in float64.
 * Each is NaN where a number is, and infinite or NaN as the arithmetic has it where one is infinite.
 */
export interface Figures {
  readonly mean: Float;
  readonly std: Float;
  readonly lowest: Float;
  readonly highest: Float;
  readonly norm: Float;
}

/**
 * `all` are the figures of the value, `each` those of its positions: float64 [positions, 5], in the order of
 * `Figures`. The rest is as in Snapshot, without the value, whose shape is `shape`.
 */
export interface FiguresRead {
  readonly reply: 'FiguresRead';
  readonly stop: StopIdentity;
  readonly site: string;
  readonly shape: readonly number[];
  readonly axes: string;
  readonly dtype: string;
  readonly positions: readonly number[];
  readonly exactness: 'exact' | 'recomputed' | 'fast' | 're-run from the committed cache' | 'run ahead' | 'recomputed from q and k';
  readonly all: Figures;
  readonly each: ArrayJson | null;
  readonly not_kept: string | null;
}

/**
 * The largest |b - a| of finite numbers, in float64, and the first place that has it: the position of the pass and
 * the indices of all axes after it, a selected head or feature by its own number. `a` and `b` are the numbers
 * there.
 */
export interface LargestDifference {
  readonly difference: Float;
  readonly position: number;
  readonly index: readonly number[];
  readonly a: Float;
  readonly b: Float;
}

/**
 * The distance of two values of one shape at the positions that both passes have, in float64 and over all of their
 * numbers. `differing` counts pairs that are not the same number (NaN is the same as NaN), `not_finite` those
 * of them that have a number that is not finite; `largest` is of the others, None where no finite pair differs.
 *
 * `distances` are |b - a| / |a| at the last of `positions`, as many as were asked for, without pairs that are not
 * finite; None where |a| is zero.
 */
export interface Apart {
  readonly positions: readonly number[];
  readonly numbers: number;
  readonly differing: number;
  readonly not_finite: number;
  readonly largest: LargestDifference | null;
  readonly distances: readonly (Float | null)[];
}

/** `apart` is None where the passes share no position, or where their values have other shapes at one. */
export interface Compared {
  readonly reply: 'Compared';
  readonly site: string;
  readonly stops: readonly StopIdentity[];
  readonly shapes: readonly (readonly number[])[];
  readonly dtypes: readonly string[];
  readonly apart: Apart | null;
  readonly not_kept: string | null;
}
