/* Written by docs/write_reference.py from the structs of the package; change those, not this file. */

export type StoredDtype = 'float32' | 'bfloat16' | 'float16';

/** The shard at `path` is whole and on the disk. `existed`: it was there already. */
export interface Collected {
  readonly reply: 'Collected';
  readonly shard: number;
  readonly path: string;
  readonly prompts: number;
  readonly bytes_stored: number;
  readonly existed: boolean;
  readonly not_kept: string | null;
}
