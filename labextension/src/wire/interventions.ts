/* Written by docs/write_reference.py from the structs of the package; change those, not this file. */

import {
  Edit,
} from './edits';

import {
  StopIdentity,
} from './nouns';

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

/** `tokens`, by text or number, are read besides the `top` most probable without and with the edits. */
export interface MeasureEffect {
  readonly request: 'MeasureEffect';
  readonly session: string;
  readonly top?: number;
  readonly tokens?: readonly (number | string)[];
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

/** `number` None removes all rules. */
export interface Unsteer {
  readonly request: 'Unsteer';
  readonly session: string;
  readonly number?: number | null;
}

/** Turn a steering rule off without ending it, or on again, from the next pass (or the rest of this one) on. */
export interface EnableRule {
  readonly request: 'EnableRule';
  readonly session: string;
  readonly number: number;
  readonly enabled: boolean;
}
