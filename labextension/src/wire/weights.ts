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
 * `values` as the points have it: `x @ values` is the next point, apart from biases. A head or neuron chosen alone
 * has no axis of its own.
 */
export interface WeightRead {
  readonly reply: 'WeightRead';
  readonly name: string;
  readonly values: ArrayJson;
  readonly not_kept: string | null;
}

/** Oldest first. The first number is more than one above `since` where older ones are not kept any more. */
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

/** The session's pages and states leave the device for `tier`; it comes back when it is next needed. */
export interface SwapOut {
  readonly request: 'SwapOut';
  readonly session: string;
  readonly tier?: 'host' | 'disk';
}

/** Bring the session back now. Answered at once when it is resident. */
export interface SwapIn {
  readonly request: 'SwapIn';
  readonly session: string;
}

/**
 * Announce that the session will be used again in so many seconds. A rest of `idle_swap_seconds` or more begins
 * with leaving the device; before its end the session is brought back.
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

/** The weights leave the device until the next request that needs them. Refused while a session runs. */
export interface Sleep {
  readonly request: 'Sleep';
}

export interface Wake {
  readonly request: 'Wake';
}

/**
 * The copies of streamed layers that have arrived, with higher numbers than `since`; the last few thousand are
 * kept.
 */
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
