/* Written by docs/write_reference.py from the structs of the package; change those, not this file. */

import {
  ArrayJson,
  Float,
} from './values';

/**
 * `scores` is float64 [writers, readers], NaN where the writer is not before the reader. Writers are `embed`, the
 * heads z.3[2] and the MLPs mlp_out.3; readers the queries, keys and values of heads, q.3[2], the MLPs mlp_in.3, and
 * `logits`. `corrupted` and `clean` are the metrics of the lines.
 */
export interface EdgesAttributed {
  readonly reply: 'EdgesAttributed';
  readonly metric: string;
  readonly writers: readonly string[];
  readonly readers: readonly string[];
  readonly scores: ArrayJson;
  readonly corrupted: Float;
  readonly clean: Float;
  readonly steps: number;
  readonly notes: readonly string[];
  readonly not_kept: string | null;
}
