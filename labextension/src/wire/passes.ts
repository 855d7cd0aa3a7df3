/* Written by docs/write_reference.py from the structs of the package; change those, not this file. */

import {
  ArrayJson,
} from './values';

import {
  Snapshot,
  StopIdentity,
} from './nouns';

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
