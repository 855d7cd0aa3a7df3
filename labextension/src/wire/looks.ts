/* Written by docs/write_reference.py from the structs of the package; change those, not this file. */

import {
  LensRow,
  StopIdentity,
} from './nouns';

import {
  EffectReading,
  Influences,
} from './readings';

import {
  ApplyEdit,
  MeasureEffect,
} from './interventions';

import {
  Circumstances,
} from './circumstances';

import {
  Lens,
} from './passes';

/**
 * All that makes a look again: a pass over `line` without rules, stopped at `site`, with these `edits` of the value
 * there, and the request, its tokens by their numbers.
 */
export interface LookRecipe {
  readonly line: readonly number[];
  readonly site: string;
  readonly edits: readonly ApplyEdit[];
  readonly asked: Lens | MeasureEffect;
  readonly made: Circumstances;
}

/**
 * Of the stop at `site`. Rules in force and what was put in place before the stop hold on both sides of it.
 * `made` is None where a pass over its line alone does not come to the stop: behind other passes, under rules.
 */
export interface Effect {
  readonly reply: 'Effect';
  readonly stop: StopIdentity;
  readonly effect: EffectReading;
  readonly site: string;
  readonly edits: readonly string[];
  readonly influences: Influences;
  readonly made: LookRecipe | null;
  readonly not_kept: string | null;
}

/** `notes` are sentences on tokens that may have been meant otherwise; `made` is as in an Effect. */
export interface LensRead {
  readonly reply: 'LensRead';
  readonly stop: StopIdentity;
  readonly site: string;
  readonly rows: readonly LensRow[];
  readonly notes: readonly string[];
  readonly made: LookRecipe | null;
  readonly not_kept: string | null;
}
