/* Written by docs/write_reference.py from the structs of the package; change those, not this file. */

import {
  ArrayJson,
  Float,
} from './values';

import {
  Circumstances,
} from './looks';

/** A token, and what a unit of a feature adds to its logit. */
export interface WrittenToken {
  readonly token: number;
  readonly text: string;
  readonly logit: Float;
}

/** A feature of the same module, and the cosine of its decoder row with another's. */
export interface LikeFeature {
  readonly feature: number;
  readonly cosine: Float;
}

/**
 * The feature `unit` of the module at `site`, which has so many `features` and reads `at`. It is written to the
 * point `writes`, in `layer`; None where it is not written back. `like` are the features whose decoder rows for that
 * layer have the largest cosines with its own, the largest first. `promoted` and `suppressed` are the tokens to whose
 * logits it adds most and least, by way of the residual alone: the product of its decoder row with W_U, with the
 * final norm `folded` in (its weight, and its mean where it subtracts one, but not its factor). They are empty where
 * that is not defined, for the reason `unwritten`. `notes` are sentences on the unit.
 */
export interface FeatureRead {
  readonly reply: 'FeatureRead';
  readonly site: string;
  readonly unit: number;
  readonly kind: 'sae' | 'transcoder' | 'cross_layer_transcoder' | 'probe' | 'tuned_lens';
  readonly features: number;
  readonly at: string;
  readonly layer: number;
  readonly writes: string | null;
  readonly like: readonly LikeFeature[];
  readonly promoted: readonly WrittenToken[];
  readonly suppressed: readonly WrittenToken[];
  readonly made: Circumstances;
  readonly folded: boolean;
  readonly unwritten: string;
  readonly notes: readonly string[];
  readonly not_kept: string | null;
}

/** The features of each row, fp32 [rows, units]. */
export interface FeaturesEncoded {
  readonly reply: 'FeaturesEncoded';
  readonly values: ArrayJson;
  readonly not_kept: string | null;
}
