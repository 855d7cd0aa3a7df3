/* Written by docs/write_reference.py from the structs of the package; change those, not this file. */

import {
  ArrayJson,
  Float,
} from './values';

export type PassesMeant = 'prompt' | 'new';

/** x * factor */
export interface ScaleEdit {
  readonly edit: 'scale';
  readonly factor: number;
}

/** x + coef * vector; `vector` broadcasts against [positions, features] (or [positions, heads, head features]). */
export interface AddEdit {
  readonly edit: 'add';
  readonly vector: ArrayJson;
  readonly coef?: number;
}

/** An array that broadcasts to the selected part; a number has shape (). */
export interface SetEdit {
  readonly edit: 'set';
  readonly value: ArrayJson;
}

/** 0 */
export interface ZeroEdit {
  readonly edit: 'zero';
}

/** min(max(x, low), high); a bound of None is open. */
export interface ClampEdit {
  readonly edit: 'clamp';
  readonly low?: number | null;
  readonly high?: number | null;
}

/** x - (x . d) d / |d|^2 along the last axis: removes the component along `direction`. */
export interface ProjectOutEdit {
  readonly edit: 'projectout';
  readonly direction: ArrayJson;
}

/** x + coef * |x| * vector / |vector| along the last axis: adds the vector at `coef` times the norm of each row. */
export interface NormMatchEdit {
  readonly edit: 'normmatch';
  readonly vector: ArrayJson;
  readonly coef?: number;
}

/** x with its component along `direction` multiplied by `coef`; the orthogonal part stays. */
export interface OrthogonalEdit {
  readonly edit: 'orthogonal';
  readonly direction: ArrayJson;
  readonly coef?: number;
}

/** x with its component along the unit vector of `direction` between `low` and `high`; a bound of None is open. */
export interface ProjectionCapEdit {
  readonly edit: 'projectioncap';
  readonly direction: ArrayJson;
  readonly low?: number | null;
  readonly high?: number | null;
}

/**
 * The value there in another session's stopped pass.
 *
 * `site` defaults to the edited one; `positions` (absolute, in the source) to the edited positions.
 */
export interface PatchFromEdit {
  readonly edit: 'patchfrom';
  readonly session: string;
  readonly site?: string | null;
  readonly positions?: readonly number[] | null;
}

/**
 * A steering rule and its counts: passes reached, changed, |change| / |value| of the last passes, oldest first.
 * `what` is the rule in words; one that is not `enabled` applies to no pass. `onward`, `on`, `when` as in `Steer`;
 * `note` as in a breakpoint. `passes_refused` passes could not apply it, the first of this run for the reason
 * `trouble`.
 */
export interface RuleDescription {
  readonly number: number;
  readonly site: string;
  readonly edit: Edit;
  readonly positions: readonly number[] | null;
  readonly passes_met: number;
  readonly passes_changed: number;
  readonly last_relative_size: Float | null;
  readonly mean_relative_size: Float | null;
  readonly relative_sizes: readonly Float[];
  readonly what: string;
  readonly enabled: boolean;
  readonly onward: number | null;
  readonly on: 'prompt' | 'new' | null;
  readonly when: string | null;
  readonly note: string | null;
  readonly passes_refused: number;
  readonly trouble: string | null;
}

export type Edit =
  | ScaleEdit
  | AddEdit
  | SetEdit
  | ZeroEdit
  | ClampEdit
  | ProjectOutEdit
  | NormMatchEdit
  | OrthogonalEdit
  | ProjectionCapEdit
  | PatchFromEdit;
