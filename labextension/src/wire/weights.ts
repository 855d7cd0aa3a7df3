/* Written by docs/write_reference.py from the structs of the package; change those, not this file. */

import {
  ArrayJson,
  Float,
} from './values';

import {
  Transfer,
} from './base';

import {
  LayerCopy,
  ModuleDescription,
  SessionDescription,
  WeightsStatistics,
} from './nouns';

/**
 * `values` in the orientation of the points: `x @ values` is the next point, apart from biases. A single selected
 * head or neuron has no axis of its own.
 */
export interface WeightRead {
  readonly reply: 'WeightRead';
  readonly name: string;
  readonly values: ArrayJson;
  readonly not_kept: string | null;
}

/** Oldest first. The first number is more than one above `since` where older ones are no longer kept. */
export interface Copies {
  readonly reply: 'Copies';
  readonly copies: readonly LayerCopy[];
  readonly not_kept: string | null;
}

/** `transfer` is None when nothing had to move. */
export interface Swapped {
  readonly reply: 'Swapped';
  readonly session: SessionDescription;
  readonly transfer: Transfer | null;
  readonly not_kept: string | null;
}

/** Move the session's pages and states from the device to `tier`; it returns when it is next needed. */
export interface SwapOut {
  readonly request: 'SwapOut';
  readonly session: string;
  readonly tier?: 'host' | 'disk';
}

/** Move the session back now. Answered at once when it is resident. */
export interface SwapIn {
  readonly request: 'SwapIn';
  readonly session: string;
}

/**
 * Announce that the session will be used again in so many seconds. For a rest of `idle_swap_seconds` or more it
 * leaves the device first, and returns before the end.
 */
export interface Rest {
  readonly request: 'Rest';
  readonly session: string;
  readonly expected_seconds: number;
}

export interface Noted {
  readonly reply: 'Noted';
  readonly not_kept: string | null;
}

/** `seconds` is 0 when they were there already. */
export interface WeightsMoved {
  readonly reply: 'WeightsMoved';
  readonly weights: WeightsStatistics;
  readonly seconds: Float;
  readonly not_kept: string | null;
}

/** Move the weights off the device until the next request that needs them. Refused while a session runs. */
export interface Sleep {
  readonly request: 'Sleep';
}

export interface Wake {
  readonly request: 'Wake';
}

/** The completed copies of streamed layers with higher numbers than `since`; the last few thousand are kept. */
export interface ReadCopies {
  readonly request: 'ReadCopies';
  readonly since?: number;
}

export interface Modules {
  readonly reply: 'Modules';
  readonly modules: readonly ModuleDescription[];
  readonly not_kept: string | null;
}

export interface Tokenized {
  readonly reply: 'Tokenized';
  readonly tokens: readonly number[];
  readonly texts: readonly string[];
  readonly text: string;
  readonly not_kept: string | null;
}

export interface ListModules {
  readonly request: 'ListModules';
}

export interface Tokenize {
  readonly request: 'Tokenize';
  readonly text: string;
  readonly chat?: boolean;
}

export interface Detokenize {
  readonly request: 'Detokenize';
  readonly tokens: readonly number[];
}
