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
 * metric's gradient there, in the corrupted line, or as the mean over `steps` points of the way to the clean one. With
 * the correction "attention" queries and keys are estimated from what attention makes of them, with "cancellation" a
 * score is the mean size over gradients that each bypass one layer (both of AtP*).
 */
export interface Estimate {
  readonly steps: number;
  readonly corrections: readonly ('attention' | 'cancellation')[];
}

/**
 * All that makes the cells again: the request, with the tokens of its lines in place of sessions and without cells
 * to go on from, the `attention` of the sessions named, None for the engine's own, their `adapter`, the added
 * `modules` that its sites are of, and the origin. `kept` cells were computed before, in other passes.
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

/** Cells of an estimate that an exact sweep computed too: by how much the edit changes each metric there. */
export interface Confirmed {
  readonly cells: readonly number[];
  readonly changes: readonly (readonly Float[])[];
}

/**
 * `measured` has each metric, in the order asked. `places` are those along each axis of `over`, which has every
 * axis twice where cells are pairs of cells; `texts` are the edited line's tokens. `computed` cells were computed;
 * in the others the edit changes nothing. Cells numbered `rechecked` (row by row) were computed again alone, of
 * the first pair one where the edit changes nothing; there are none where each was computed alone anyway, and `mode`
 * says so. By `recipe` another sweep is known to go on from this one, by `made` the cells can be
 * computed again. With an `estimate` the values are changes, of which the client has some `confirmed`.
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
 * Edit the line `corrupted` at every cell of `over`, one cell at a time, and read `metrics` at its last position. A
 * line is its tokens, or the name of the session that has them. Without an `edit` a cell gets the value that `clean`
 * has there. `site` names a point, and a layer where `over` does not. The session itself must be empty; the sweep
 * computes in its memory, and closing it ends the sweep. `noise` spoils the line `corrupted` before it is swept. Over
 * "coef" the edit has each of `coefs` as its factor or coefficient. A cell edits as many layers or positions
 * together as `windows` says, from its own on; with `in_pairs`, each cell is a pair of cells. Only `positions` are
 * edited, where they are given, or those of `align`, each with the position of the clean line that corresponds to it.
 * `fast` computes many cells in one pass and recomputes some, chosen by `seed`, alone; `exact` computes each alone.
 * Of the first `pair` of lines of a sweep several cells are recomputed, of each later one a single cell.
 * With `receivers` a cell is a path: these sites alone see the edit, past blocks that stand as they are in the line;
 * `over` may be empty then. `into` the "clean" line are put the values of the corrupted one. `continued` cells are
 * taken as they are, but for those that are recomputed. With an `estimate` no cell is computed: its change is
 * estimated by gradients, for which noise, `coefs`, `receivers` and `continued` cells are of no use. With `chosen`
 * cells, numbered row by row, these alone are computed, and the others are NaN. `calls` are the most rows of each call
 * of a layer, in turn, as (rows, calls), for a sweep that is made again.
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
