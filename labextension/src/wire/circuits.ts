/* Written by docs/write_reference.py from the structs of the package; change those, not this file. */

import {
  ArrayJson,
  Float,
} from './values';

import {
  AdapterIdentity,
} from './modules';

import {
  StopIdentity,
} from './nouns';

import {
  Provenance,
} from './provenance';

export type EdgeMethod = 'gradients' | 'exact';

/**
 * Everything needed to compute the scores again: the request, with tokens in place of sessions, the `attention` of
 * the named sessions (None for the engine's own), their `adapter`, and the origin.
 */
export interface EdgeRecipe {
  readonly asked: AttributeEdges;
  readonly attention: 'eager' | 'sdpa' | null;
  readonly by: Provenance;
  readonly adapter: AdapterIdentity | null;
}

/**
 * `scores` is float64 [writers, readers], NaN where the writer is not before the reader. Writers are `embed`, the
 * heads z.3[2] and the MLPs mlp_out.3; readers the queries, keys and values of heads, q.3[2], the MLPs mlp_in.3, and
 * `logits`. `corrupted` and `clean` are the metrics of the two. `stop` is the stop of the session with the corrupted
 * tokens, None where they were given otherwise or the session was running. Edges that were not chosen are NaN too.
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
  readonly stop: StopIdentity | null;
  readonly made: EdgeRecipe | null;
  readonly method: 'gradients' | 'exact';
  readonly not_kept: string | null;
}

/**
 * Estimate by gradients the effect of each edge: the change of `metric` at the last position of `corrupted` if one
 * reader got one writer's value from `clean`, by the mean gradient over `steps` points on the path between the two
 * embeddings. "exact" computes that change, by a pass for each edge, or for each `chosen` edge. The session must be
 * empty; only its memory is used.
 */
export interface AttributeEdges {
  readonly request: 'AttributeEdges';
  readonly session: string;
  readonly corrupted: readonly number[] | string;
  readonly clean: readonly number[] | string;
  readonly metric: string;
  readonly steps?: number;
  readonly method?: 'gradients' | 'exact';
  readonly chosen?: readonly (readonly number[])[];
}

/** Everything needed to compute the circuits again, as for edges. */
export interface CircuitRecipe {
  readonly asked: RunCircuits;
  readonly attention: 'eager' | 'sdpa' | null;
  readonly by: Provenance;
  readonly adapter: AdapterIdentity | null;
}

/** `values` has the metric of each circuit, in the order of the request; `corrupted` and `clean` the prompts'. */
export interface CircuitsRun {
  readonly reply: 'CircuitsRun';
  readonly metric: string;
  readonly writers: readonly string[];
  readonly readers: readonly string[];
  readonly values: readonly Float[];
  readonly corrupted: Float;
  readonly clean: Float;
  readonly notes: readonly string[];
  readonly made: CircuitRecipe | null;
  readonly not_kept: string | null;
}

/**
 * Run `clean` once for each of the `circuits`, which are sets of edges: these carry their writers' values in that
 * run, all others the values of `corrupted`. The session must be empty; only its memory is used.
 */
export interface RunCircuits {
  readonly request: 'RunCircuits';
  readonly session: string;
  readonly corrupted: readonly number[] | string;
  readonly clean: readonly number[] | string;
  readonly metric: string;
  readonly circuits: readonly (readonly (readonly number[])[])[];
}
