/* Written by docs/write_reference.py from the structs of the package; change those, not this file. */

import {
  ArrayJson,
  Float,
} from './values';

import {
  AddEdit,
  ClampEdit,
  NormMatchEdit,
  OrthogonalEdit,
  PatchFromEdit,
  ProjectOutEdit,
  ProjectionCapEdit,
  ScaleEdit,
  SetEdit,
  ZeroEdit,
} from './edits';

import {
  AdapterIdentity,
  ModuleIdentity,
} from './modules';

import {
  Provenance,
} from './provenance';

export type Correction = 'attention' | 'cancellation';

export type Axis = 'point' | 'layer' | 'position' | 'head' | 'neuron' | 'coef';

export type EditedLine = 'corrupted' | 'clean';

/** The mean over the positions of the clean tokens, or without those of the edited ones. */
export interface MeanEdit {
  readonly edit: 'mean';
}

/** The value at another position of the clean tokens, or without those of the edited ones; drawn by the seed. */
export interface ResampleEdit {
  readonly edit: 'resample';
}

/**
 * Normal noise on the input of the first layer at `positions`, of `scale` times the standard deviation there; drawn
 * by the sweep's seed.
 */
export interface Noise {
  readonly positions: readonly number[];
  readonly scale: Float;
}

/** An incomplete sweep: these cells of the sweep of this `recipe` have `values`, one for each metric. */
export interface Continued {
  readonly recipe: string;
  readonly cells: readonly number[];
  readonly values: readonly (readonly Float[])[];
}

/**
 * Estimate each cell's change of the metric by gradients, to first order: the change at its places times the
 * metric's gradient there, on the corrupted tokens, or as the mean over `steps` points on the path to the clean ones.
 * With the correction "attention" queries and keys are estimated from attention's output, with "cancellation" a score
 * is the mean magnitude over gradients that each bypass one layer (both of AtP*).
 */
export interface Estimate {
  readonly steps: number;
  readonly corrections: readonly ('attention' | 'cancellation')[];
}

/**
 * Everything needed to compute the cells again: the request, with tokens in place of sessions and without continued
 * cells, the `attention` of the named sessions (None for the engine's own), their `adapter`, the added `modules` of
 * its sites, and the origin. `kept` cells were computed before, in other passes.
 */
export interface Recipe {
  readonly asked: Sweep;
  readonly attention: 'eager' | 'sdpa' | null;
  readonly by: Provenance;
  readonly adapter: AdapterIdentity | null;
  readonly kept: number;
  readonly modules: readonly ModuleIdentity[];
}

/**
 * One metric of a sweep's cells. `values` is float64, with an axis for each of `over`; `corrupted` is the metric of
 * the corrupted tokens without an edit, `clean` that of the clean ones. `largest_difference` is the largest difference
 * between cells computed together and alone, for the rechecked ones; None where each was computed alone.
 */
export interface Measured {
  readonly metric: string;
  readonly values: ArrayJson;
  readonly corrupted: Float;
  readonly clean: Float | null;
  readonly largest_difference: Float | null;
  readonly tolerance: Float;
}

/** Cells of an estimate that an exact sweep computed too: the change of each metric there. */
export interface Confirmed {
  readonly cells: readonly number[];
  readonly changes: readonly (readonly Float[])[];
}

/**
 * `measured` has each metric, in the order of the request. `places` are those along each axis of `over`, which has
 * every axis twice where cells are pairs of cells; `texts` are the edited tokens' texts. `computed` cells were
 * computed; in the others the edit changes nothing. Cells numbered `rechecked` (row by row) were computed again alone,
 * including for the first pair one where the edit changes nothing; there are none where each was computed alone
 * anyway, as `mode` then shows. `recipe` identifies a sweep that continues this one, and `made` is everything needed
 * to compute the cells again. With an `estimate` the values are changes, of which the client has some `confirmed`.
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
  readonly made: Recipe | null;
  readonly confirmed: Confirmed | null;
  readonly not_kept: string | null;
}

/**
 * Edit the tokens `corrupted` at every cell of `over`, one cell at a time, and read `metrics` at their last
 * position. Both `clean` and `corrupted` are tokens, or the name of the session that has them. Without an `edit` a
 * cell gets the value of `clean` there. `site` names a point, and a layer where `over` does not. The session itself
 * must be empty; the sweep computes in its memory, and closing it ends the sweep. `noise` is added to `corrupted`
 * before the sweep. Over "coef" the edit has each of `coefs` as its factor or coefficient. A cell edits as many layers
 * or positions together as `windows` says, from its own on; with `in_pairs`, each cell is a pair of cells. If
 * `positions` are given, only these are edited; or those of `align`, each with the corresponding position of the clean
 * tokens. `fast` computes many cells in one pass and recomputes some, chosen by `seed`, alone; `exact` computes each
 * alone. Of the first `pair` of lines of a sweep several cells are recomputed, of each later one a single cell. With
 * `receivers` a cell is a path: only these sites see the edit, past unchanged blocks; `over` may be empty then. `into`
 * "clean" puts the values of the corrupted tokens into the clean ones. `continued` cells are reused, except for those
 * that are recomputed. With an `estimate` no cell is computed: gradients estimate its change, without noise, `coefs`,
 * `receivers` and `continued` cells. With `chosen` cells, numbered row by row, only these are computed, and the others
 * are NaN. `calls` are the most rows of each call of a layer, in turn, as (rows, calls), for a repeated sweep.
 */
export interface Sweep {
  readonly request: 'Sweep';
  readonly session: string;
  readonly corrupted: readonly number[] | string;
  readonly site: string;
  readonly over: readonly ('point' | 'layer' | 'position' | 'head' | 'neuron' | 'coef')[];
  readonly metrics: readonly string[];
  readonly clean?: readonly number[] | string | null;
  readonly edit?: SweptEdit | null;
  readonly noise?: Noise | null;
  readonly coefs?: readonly number[];
  readonly positions?: readonly (number | string)[];
  readonly align?: readonly (readonly (number | string)[])[];
  readonly windows?: readonly (readonly ('point' | 'layer' | 'position' | 'head' | 'neuron' | 'coef')[])[];
  readonly in_pairs?: boolean;
  readonly mode?: 'fast' | 'exact';
  readonly seed?: number;
  readonly receivers?: readonly string[];
  readonly into?: 'corrupted' | 'clean';
  readonly pair?: number;
  readonly continued?: Continued | null;
  readonly estimate?: Estimate | null;
  readonly chosen?: readonly number[];
  readonly calls?: readonly (readonly number[])[];
}

export type SweptEdit =
  | ScaleEdit
  | AddEdit
  | SetEdit
  | ZeroEdit
  | ClampEdit
  | ProjectOutEdit
  | NormMatchEdit
  | OrthogonalEdit
  | ProjectionCapEdit
  | PatchFromEdit
  | MeanEdit
  | ResampleEdit;
