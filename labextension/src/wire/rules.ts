/* Written by docs/write_reference.py from the structs of the package; change those, not this file. */

import {
  Float,
} from './values';

import {
  Edit,
} from './edits';

export type PassesMeant = 'prompt' | 'new';

/**
 * A steering rule and its counts: passes met, changed, |change| / |value| of the last passes, oldest first. `what`
 * is the rule in words; no pass meets one that is not `enabled`. `onward`, `on`, `when` as in `Steer`; `note` as in a
 * breakpoint. `passes_refused` passes could not have it, the first of this run for the reason `trouble`.
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
