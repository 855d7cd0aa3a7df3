/* Written by docs/write_reference.py from the structs of the package; change those, not this file. */

import {
  Circumstances,
  FedTokens,
} from './circumstances';

import {
  ApplyEdit,
  MeasureEffect,
} from './interventions';

import {
  LensRow,
  Snapshot,
  StopIdentity,
} from './nouns';

import {
  Inspect,
  Lens,
} from './passes';

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
