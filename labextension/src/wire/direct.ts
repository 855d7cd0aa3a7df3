/* Written by docs/write_reference.py from the structs of the package; change those, not this file. */

import {
  Float,
} from './values';

import {
  Circumstances,
  FedTokens,
} from './looks';

import {
  StopIdentity,
  TopToken,
} from './nouns';

import {
  Contribution,
  NeuronParts,
} from './readings';

/**
 * Everything needed to compute the parts again: the `line` (token sequence), whose first positions were fed in
 * these `passes` and the others in a pass without edits and rules, stopped before layer `layer`, and the request
 * there, with the tokens by their numbers.
 */
export interface AttributionRecipe {
  readonly line: readonly number[];
  readonly layer: number;
  readonly tokens: readonly number[];
  readonly heads: boolean;
  readonly neurons: boolean;
  readonly position: number;
  readonly ahead: boolean;
  readonly made: Circumstances;
  readonly passes: readonly FedTokens[];
}

/**
 * The parts of modules in a logit at `position`, or in the difference of two (`tokens` has one or two, the second
 * subtracted), if the pass ended at the stop's boundary before layer `layer`: `logit` is the model's own epilogue of
 * the residual there. The final norm's factor is held fixed. `embedding`, `constant` (biases of norm and head), `rest`
 * (overrides by edits and rules, biases of output maps, rounding) and all `contributions` sum to it. Heads and the
 * point `bias` sum to their layer's attention and replace it; `neurons` and the point `mlp_bias` replace their layer's
 * MLP. `made` is None at a stop to which its tokens alone do not lead, for the reason `unmade`.
 */
export interface Attributed {
  readonly reply: 'Attributed';
  readonly stop: StopIdentity;
  readonly position: number;
  readonly layer: number;
  readonly tokens: readonly TopToken[];
  readonly logit: Float;
  readonly embedding: Float;
  readonly constant: Float;
  readonly rest: Float;
  readonly contributions: readonly Contribution[];
  readonly neurons: readonly NeuronParts[];
  readonly notes: readonly string[];
  readonly made: AttributionRecipe | null;
  readonly unmade: string;
  readonly not_kept: string | null;
}

/**
 * Direct logit attribution: the additions of attention and MLP of each layer that has run to the logit of a token,
 * by text or number, or of two to their difference. `heads` splits attention into its heads, `neurons` each MLP into
 * the inputs of its last map. `position` is absolute, negative from the end of the pass. `ahead` finishes the pass on
 * the side and adds the layers after the stop.
 */
export interface Attribute {
  readonly request: 'Attribute';
  readonly session: string;
  readonly tokens: readonly (number | string)[];
  readonly heads?: boolean;
  readonly neurons?: boolean;
  readonly position?: number;
  readonly ahead?: boolean;
}
