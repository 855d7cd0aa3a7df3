/* Written by docs/write_reference.py from the structs of the package; change those, not this file. */

import {
  Float,
} from './values';

import {
  Edit,
} from './edits';

import {
  StopIdentity,
} from './nouns';

import {
  RuleDescription,
} from './rules';

export interface RevertEdits {
  readonly request: 'RevertEdits';
  readonly session: string;
  readonly stop?: StopIdentity | null;
}

/** Turn an edit of the present stop off, or on again: the stopped value is then that with the other edits alone. */
export interface EnableEdit {
  readonly request: 'EnableEdit';
  readonly session: string;
  readonly number: number;
  readonly enabled: boolean;
  readonly stop?: StopIdentity | null;
}

/** `number` None removes all rules. */
export interface Unsteer {
  readonly request: 'Unsteer';
  readonly session: string;
  readonly number?: number | null;
}

/**
 * The effect of an edit. `shape` is the shape touched, `relative_size` = |after - before| / |before| over that
 * part. `stop` has the edition that it made.
 */
export interface Edited {
  readonly reply: 'Edited';
  readonly stop: StopIdentity;
  readonly site: string;
  readonly edit: string;
  readonly shape: readonly number[];
  readonly positions: readonly number[];
  readonly norm_before: Float;
  readonly norm_after: Float;
  readonly relative_size: Float | null;
  readonly entries_changed: number;
  readonly not_kept: string | null;
}

export interface Steered {
  readonly reply: 'Steered';
  readonly rule: RuleDescription;
  readonly existed: boolean;
  readonly not_kept: string | null;
}

/**
 * Change the stopped value. `site` must be the stopped one (with any selector) or None. `positions` are absolute,
 * negative from the end of the pass, None for all of the pass. `words` say what an edit was made of.
 */
export interface ApplyEdit {
  readonly request: 'ApplyEdit';
  readonly session: string;
  readonly edit: Edit;
  readonly site?: string | null;
  readonly positions?: readonly number[] | null;
  readonly words?: string | null;
  readonly stop?: StopIdentity | null;
}

/** Turn a steering rule off without ending it, or on again, from the next pass (or the rest of this one) on. */
export interface EnableRule {
  readonly request: 'EnableRule';
  readonly session: string;
  readonly number: number;
  readonly enabled: boolean;
}

/**
 * Apply `edit` at every pass that meets `site`, which may be a point of every layer (`resid_post.*`): at these
 * `positions` (negative from the end of each pass) and all from `onward` on, or all of the pass; in passes over the
 * prompt or over new tokens (`on`), or both; where the condition `when` holds at the position. An array with a row
 * for each of several `positions` gives each its row. `words` say what an edit was made of.
 */
export interface Steer {
  readonly request: 'Steer';
  readonly session: string;
  readonly site: string;
  readonly edit: Edit;
  readonly positions?: readonly number[] | null;
  readonly onward?: number | null;
  readonly on?: 'prompt' | 'new' | null;
  readonly when?: string | null;
  readonly words?: string | null;
}
