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

/**
 * Everything needed to compute the graph again: the request, with tokens in place of a session, the digest of each
 * transcoder by its site, and the rest as for edges.
 */
export interface GraphRecipe {
  readonly asked: MakeGraph;
  readonly modules: readonly (readonly string[])[];
  readonly attention: 'eager' | 'sdpa' | null;
  readonly by: Provenance;
  readonly adapter: AdapterIdentity | null;
}

/**
 * `edges` is float32 [targets, sources]: the direct effect of each source on each target. Targets are the
 * `outputs`, whose shares of the influence are `weights`, then the features at `sites`, each at one of `positions`
 * with its value in `values`. Sources are the same features, then the errors of each layer by position, then the
 * embeddings by position. For each target, float64: `reached` is its value in the model's own pass (for a feature
 * before its activation), `bias` its value without any source, `summed` the bias plus the effects of all sources,
 * including features not in `sites`. `active` counts all active features. `layers` are the layers with a transcoder,
 * in order; `texts` are the tokens' texts.
 */
export interface GraphMade {
  readonly reply: 'GraphMade';
  readonly outputs: readonly string[];
  readonly weights: readonly Float[];
  readonly sites: readonly string[];
  readonly positions: readonly number[];
  readonly values: readonly Float[];
  readonly edges: ArrayJson;
  readonly reached: ArrayJson;
  readonly bias: ArrayJson;
  readonly summed: ArrayJson;
  readonly active: number;
  readonly layers: readonly number[];
  readonly all_layers: number;
  readonly texts: readonly string[];
  readonly notes: readonly string[];
  readonly stop: StopIdentity | null;
  readonly made: GraphRecipe | null;
  readonly not_kept: string | null;
}

/**
 * Make the attribution graph of a token sequence (Ameisen et al. 2025): direct effects between the active features
 * of the added transcoders named `module`, embeddings, errors and logits, with attention patterns and the scales of
 * norms held. Its outputs are the `metric` at the last position, or without one the most probable tokens' logits minus
 * the mean of all: the fewest that together have this `probability`, at most `logits`. The effects on the `features`
 * features with the most influence are computed. The session must be empty; only its memory is used.
 */
export interface MakeGraph {
  readonly request: 'MakeGraph';
  readonly session: string;
  readonly line: readonly number[] | string;
  readonly module: string;
  readonly metric?: string | null;
  readonly logits?: number;
  readonly probability?: number;
  readonly features?: number;
}
