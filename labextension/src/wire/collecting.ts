/* Written by docs/write_reference.py from the structs of the package; change those, not this file. */

import {
  ArrayJson,
  Float,
} from './values';

export type StoredDtype = 'float32' | 'bfloat16' | 'float16';

/**
 * The shard is whole: on the disk at `path`, or in `content` the bytes of its file, or, without either, with the
 * client, which has it already. `bytes_stored` are those of the file, None of the client's. `existed`: it was there
 * already, and how it was computed stands in it. `mode` is how it was computed now; the prompts numbered `rechecked`
 * were computed again alone, and `largest_difference` is what they differed by, None where each was computed alone
 * anyway.
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
