/* Written by docs/write_reference.py from the structs of the package; change those, not this file. */

import {
  ArrayJson,
} from './values';

import {
  Snapshot,
  StopIdentity,
} from './nouns';

/**
 * The values at those of the sites that the pass has met, as they were asked for; `logits` are fp32 [positions of
 * the pass, vocabulary].
 */
export interface PassRead {
  readonly reply: 'PassRead';
  readonly stop: StopIdentity;
  readonly sites: readonly string[];
  readonly values: readonly ArrayJson[];
  readonly logits: ArrayJson | null;
  readonly not_kept: string | null;
}

/**
 * Read the values at `sites` of the stopped pass, as it went up to the stop; with `ahead` also as it would go on
 * from there with the edits made so far, and with `logits` those of all its positions. Where `value` is given it would
 * go on with that in the place of the stopped one at `positions`, as in ResumeWith; the stop itself stays as it is.
 */
export interface ReadPass {
  readonly request: 'ReadPass';
  readonly session: string;
  readonly sites?: readonly string[];
  readonly ahead?: boolean;
  readonly logits?: boolean;
  readonly value?: ArrayJson | null;
  readonly positions?: readonly number[] | null;
}

/**
 * The stop that a ResumeWith came to: the value there, `step` and `positions` of its pass, as in Paused, and the
 * tokens that the run has `drawn` so far.
 */
export interface Reached {
  readonly reply: 'Reached';
  readonly snapshot: Snapshot;
  readonly step: number;
  readonly positions: readonly number[];
  readonly drawn: readonly number[];
  readonly not_kept: string | null;
}
