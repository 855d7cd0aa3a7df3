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
 * All that makes the graph again: the request, with the tokens of its line in place of a session, the digest of
 * each transcoder by its site, and the rest as of edges.
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
 * embeddings by position. Of each target, float64: `reached` is what it has by the model's own pass (of a feature
 * before its activation), `bias` what it has without any source, `summed` the bias with the effects of all sources,
 * also of the features that are not among `sites`; `active` counts all that are active. `layers` are those that have
 * a transcoder, in order; `texts` those of the tokens.
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
 * Make the attribution graph of a line (Ameisen et al. 2025): direct effects between the active features of the
 * added transcoders named `module`, embeddings, errors and logits, with attention patterns and the scales of norms
 * held. Its outputs are the `metric` at the last position, or where there is none the most probable tokens' logits
 * less the mean of all: as few as have this `probability` together, at most `logits`. The effects on `features`
 * features are computed, those of most influence. The session must be empty; only its memory is used.
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
