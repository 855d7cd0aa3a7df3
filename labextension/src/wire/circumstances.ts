/* Written by docs/write_reference.py from the structs of the package; change those, not this file. */

import {
  AdapterIdentity,
} from './adapters';

import {
  Steer,
} from './interventions';

import {
  ModuleIdentity,
} from './module_form';

import {
  Provenance,
} from './provenance';

/** Positions [start, end) of a line, which were fed `each` at a time under these steering `rules`. */
export interface FedTokens {
  readonly start: number;
  readonly end: number;
  readonly each: number;
  readonly rules: readonly Steer[];
}

/**
 * The steering `rules` that held, as they are asked for, the `attention`, None for the engine's own, the
 * `adapter`, the added `modules` that the sites of rules and request are of, and the model and machine that computed
 * it.
 */
export interface Circumstances {
  readonly rules: readonly Steer[];
  readonly attention: 'eager' | 'sdpa' | null;
  readonly by: Provenance;
  readonly adapter: AdapterIdentity | null;
  readonly modules: readonly ModuleIdentity[];
}
