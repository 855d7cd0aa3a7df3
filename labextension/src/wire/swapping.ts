/* Written by docs/write_reference.py from the structs of the package; change those, not this file. */

import {
  Float,
} from './values';

import {
  SessionDescription,
  WeightsStatistics,
} from './nouns';

import {
  Transfer,
} from './transfers';

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
