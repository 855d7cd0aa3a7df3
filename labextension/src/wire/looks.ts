/* Written by docs/write_reference.py from the structs of the package; change those, not this file. */

import {
  Float,
} from './values';

import {
  Circumstances,
  FedTokens,
} from './circumstances';

import {
  ApplyEdit,
} from './interventions';

import {
  LensRow,
  Snapshot,
  StopIdentity,
} from './nouns';

import {
  EffectReading,
  Influences,
} from './readings';

/**
 * All that makes a look again: the `line`, of which the first positions were fed in these `passes` and the others
 * in a pass without rules, stopped at `site`, with these `edits` of the value there, and the request, its tokens by
 * their numbers.
 */
export interface LookRecipe {
  readonly line: readonly number[];
  readonly site: string;
  readonly edits: readonly ApplyEdit[];
  readonly asked: Inspect | Lens | MeasureEffect;
  readonly made: Circumstances;
  readonly passes: readonly FedTokens[];
}

/** `made` is what makes the stop again; None where nothing does, for the reason `unmade`. */
export interface Inspected {
  readonly reply: 'Inspected';
  readonly snapshot: Snapshot;
  readonly made: LookRecipe | null;
  readonly unmade: string;
  readonly not_kept: string | null;
}

/**
 * Of the stop at `site`. Rules in force and what was put in place before the stop hold on both sides of it. `made`
 * and `unmade` are as in Inspected.
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

/** `notes` are sentences on tokens that may have been meant otherwise; `made` and `unmade` are as in Inspected. */
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
