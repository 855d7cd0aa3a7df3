/* Written by docs/write_reference.py from the structs of the package; change those, not this file. */

import {
  ArrayJson,
  Float,
} from './values';

import {
  Circumstances,
} from './looks';

export type StoredDtype = 'float32' | 'bfloat16' | 'float16';

/**
 * The shard is complete: on the disk at `path`, or in `content` the bytes of its file, or, without either, with the
 * client, which has it already. `bytes_stored` is the size of the file, None of the client's. `existed`: it was there
 * already, and records how it was computed. `mode` is the mode now. The prompts numbered `rechecked` were computed
 * again alone, and `largest_difference` is their difference, None where each was computed alone anyway.
 */
export interface Collected {
  readonly reply: 'Collected';
  readonly shard: number;
  readonly path: string | null;
  readonly prompts: number;
  readonly bytes_stored: number | null;
  readonly existed: boolean;
  readonly mode: 'fast' | 'exact';
  readonly rechecked: readonly number[];
  readonly largest_difference: Float | null;
  readonly notes: readonly string[];
  readonly content: ArrayJson | null;
  readonly not_kept: string | null;
}

/**
 * `tokens` of each prompt. `values`, fp32, of all prompts one after the other: the negative log-likelihood of each
 * token except the first, or logits [positions, vocabulary]. `largest_difference` is the largest difference between
 * losses computed together and alone, for the recomputed ones; None where each prompt was computed alone, as `mode`
 * then shows, for the reasons in `notes`. `seed` is the request's, and `made` what else the values follow from.
 */
export interface Scored {
  readonly reply: 'Scored';
  readonly tokens: readonly (readonly number[])[];
  readonly values: ArrayJson;
  readonly made: Circumstances;
  readonly seed: number;
  readonly mode: 'fast' | 'exact';
  readonly largest_difference: Float | null;
  readonly notes: readonly string[];
  readonly not_kept: string | null;
}
