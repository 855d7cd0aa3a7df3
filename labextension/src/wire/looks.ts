/* Written by docs/write_reference.py from the structs of the package; change those, not this file. */

import {
  ArrayJson,
  Float,
} from './values';

import {
  AdapterIdentity,
  ModuleIdentity,
} from './modules';

import {
  LensRow,
  Snapshot,
  StopIdentity,
  WatchDescription,
} from './nouns';

import {
  Provenance,
} from './provenance';

import {
  EffectReading,
  Influences,
} from './readings';

import {
  ApplyEdit,
  Steer,
} from './running';

/** Positions [start, end) of a sequence, fed `each` at a time under these steering `rules`. */
export interface FedTokens {
  readonly start: number;
  readonly end: number;
  readonly each: number;
  readonly rules: readonly Steer[];
}

/**
 * The steering `rules` in force, as requested; the `attention`, None for the engine's own; the `adapter`; the added
 * `modules` of the sites in rules and request; and the model and machine of the computation.
 */
export interface Circumstances {
  readonly rules: readonly Steer[];
  readonly attention: 'eager' | 'sdpa' | null;
  readonly by: Provenance;
  readonly adapter: AdapterIdentity | null;
  readonly modules: readonly ModuleIdentity[];
}

/**
 * Everything needed to repeat a reading at a stop: the `line` (token sequence), whose first positions were fed in
 * these `passes` and the others in a pass without rules, stopped at `site`, with these `edits` of the value there, and
 * the request, its tokens by their numbers.
 */
export interface LookRecipe {
  readonly line: readonly number[];
  readonly site: string;
  readonly edits: readonly ApplyEdit[];
  readonly asked: Inspect | Lens | MeasureEffect;
  readonly made: Circumstances;
  readonly passes: readonly FedTokens[];
}

/** `made` is everything needed to reproduce the stop; None where that is impossible, for the reason `unmade`. */
export interface Inspected {
  readonly reply: 'Inspected';
  readonly snapshot: Snapshot;
  readonly made: LookRecipe | null;
  readonly unmade: string;
  readonly not_kept: string | null;
}

/**
 * The effect at the stop at `site`. Rules in force and overrides before the stop apply on both sides. `made` and
 * `unmade` are as in Inspected.
 */
export interface Effect {
  readonly reply: 'Effect';
  readonly stop: StopIdentity;
  readonly effect: EffectReading;
  readonly site: string;
  readonly edits: readonly string[];
  readonly influences: Influences;
  readonly made: LookRecipe | null;
  readonly unmade: string;
  readonly not_kept: string | null;
}

/** `notes` are sentences on tokens whose meaning may be ambiguous; `made` and `unmade` are as in Inspected. */
export interface LensRead {
  readonly reply: 'LensRead';
  readonly stop: StopIdentity;
  readonly site: string;
  readonly rows: readonly LensRow[];
  readonly notes: readonly string[];
  readonly made: LookRecipe | null;
  readonly unmade: string;
  readonly not_kept: string | null;
}

/** `value` of the expression at the absolute `position`. */
export interface Evaluated {
  readonly reply: 'Evaluated';
  readonly stop: StopIdentity;
  readonly value: boolean | number | Float | string;
  readonly site: string;
  readonly position: number;
  readonly not_kept: string | null;
}

/** A site's value in the stopped pass. Sites not reached yet need `ahead`. `site` None is the stopped one. */
export interface Inspect {
  readonly request: 'Inspect';
  readonly session: string;
  readonly site?: string | null;
  readonly positions?: readonly number[] | null;
  readonly ahead?: boolean;
}

/**
 * Logit lens at a residual site of the stopped pass; `site` None is the stopped one. `tokens`, by text or number,
 * are read besides the `top` most probable.
 */
export interface Lens {
  readonly request: 'Lens';
  readonly session: string;
  readonly site?: string | null;
  readonly positions?: readonly number[] | null;
  readonly top?: number;
  readonly tokens?: readonly (number | string)[];
}

/** `tokens`, by text or number, are read besides the `top` most probable without and with the edits. */
export interface MeasureEffect {
  readonly request: 'MeasureEffect';
  readonly session: string;
  readonly top?: number;
  readonly tokens?: readonly (number | string)[];
}

/**
 * Evaluate an expression of the condition language at a position of the stopped pass, as a breakpoint there would
 * read it. `site` None is the stopped one; `position` is absolute, negative from the end of the pass.
 */
export interface Evaluate {
  readonly request: 'Evaluate';
  readonly session: string;
  readonly expression: string;
  readonly site?: string | null;
  readonly position?: number;
}

/** A `vector` as wide as the watched site; a session's watches of one site name their directions by `name`. */
export interface Direction {
  readonly name: string;
  readonly vector: ArrayJson;
}

/** `site` None ends all watches; `direction` is the name of a direction. */
export interface Unwatch {
  readonly request: 'Unwatch';
  readonly session: string;
  readonly site?: string | null;
  readonly direction?: string | null;
}

export interface Watching {
  readonly reply: 'Watching';
  readonly watch: WatchDescription;
  readonly not_kept: string | null;
}

/**
 * Record a site over all runs from now on: its value, or the component of its value along a `direction`. `fresh`
 * discards earlier recordings.
 */
export interface Watch {
  readonly request: 'Watch';
  readonly session: string;
  readonly site: string;
  readonly byte_cap?: number;
  readonly fresh?: boolean;
  readonly direction?: Direction | null;
}

/** The token sequence of a run, as far as it was fed when the watch was read or the run was left, and its passes. */
export interface WatchedLine {
  readonly run: number;
  readonly tokens: readonly number[];
  readonly passes: readonly FedTokens[];
}

/** Everything needed to record the passes of a watch again: the sequences of its runs, and the `direction`. */
export interface WatchRecipe {
  readonly lines: readonly WatchedLine[];
  readonly direction: Direction | null;
  readonly made: Circumstances;
}

/**
 * All recorded passes of a site, one value a pass, each with its absolute positions and its run: the session's
 * first prompt is run 1. `made` is everything needed to reproduce them; None where that is impossible, for the reason
 * `unmade`.
 */
export interface WatchRead {
  readonly reply: 'WatchRead';
  readonly watch: WatchDescription;
  readonly axes: string;
  readonly values: readonly ArrayJson[];
  readonly positions: readonly (readonly number[])[];
  readonly runs: readonly number[];
  readonly made: WatchRecipe | null;
  readonly unmade: string;
  readonly not_kept: string | null;
}

/** `direction` is the name of a direction; None reads the watch of the value. */
export interface ReadWatch {
  readonly request: 'ReadWatch';
  readonly session: string;
  readonly site: string;
  readonly direction?: string | null;
}
