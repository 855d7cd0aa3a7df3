/* Written by docs/write_reference.py from the structs of the package; change those, not this file. */

import {
  ArrayJson,
} from './values';

/**
 * `tokens` of each prompt. `values`, fp32, of all prompts one after the other: the negative log-likelihood of each
 * token but the first, or logits [positions, vocabulary].
 */
export interface Scored {
  readonly reply: 'Scored';
  readonly tokens: readonly (readonly number[])[];
  readonly values: ArrayJson;
  readonly not_kept: string | null;
}
