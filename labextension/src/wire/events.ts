/* Written by docs/write_reference.py from the structs of the package; change those, not this file. */

import {
  Float,
} from './values';

import {
  Progress,
  Transfer,
} from './base';

import {
  StopIdentity,
} from './nouns';

/** Progress of the work in a session, sent a few times a second. */
export interface WorkProgressed {
  readonly event: 'WorkProgressed';
  readonly session: string;
  readonly progress: Progress;
}

/**
 * Events for this client were dropped, of any session (`session` is empty): it did not read them for too long, or
 * its connection was lost for too long.
 */
export interface EventsMissed {
  readonly event: 'EventsMissed';
  readonly session: string;
}

export interface SessionOpened {
  readonly event: 'SessionOpened';
  readonly session: string;
}

export interface SessionClosed {
  readonly event: 'SessionClosed';
  readonly session: string;
}

export interface SessionRunning {
  readonly event: 'SessionRunning';
  readonly session: string;
}

/**
 * `text` is what the streamed text gained; it may be empty while a character is incomplete. `log_probability` is
 * that of the token, as in Finished.
 */
export interface TokenSampled {
  readonly event: 'TokenSampled';
  readonly session: string;
  readonly step: number;
  readonly token: number;
  readonly text: string;
  readonly log_probability?: Float;
}

export interface SessionPaused {
  readonly event: 'SessionPaused';
  readonly session: string;
  readonly stop: StopIdentity;
  readonly site: string;
  readonly step: number;
  readonly reason: 'breakpoint' | 'step' | 'interrupt' | 'back' | 'fork' | 'quota';
}

export interface SessionFinished {
  readonly event: 'SessionFinished';
  readonly session: string;
  readonly stop: StopIdentity;
  readonly reason: 'length' | 'eos' | 'stop_string' | 'context' | 'slab_full';
  readonly new_tokens: number;
}

/** The value at its stop was edited or reverted; `stop` has the new edition. */
export interface SessionEdited {
  readonly event: 'SessionEdited';
  readonly session: string;
  readonly stop: StopIdentity;
}

export interface SessionFailed {
  readonly event: 'SessionFailed';
  readonly session: string;
  readonly code: string;
  readonly message: string;
}

/** A steering rule could not be applied in a pass, for the first time in this run. The run continues without it. */
export interface RuleRefused {
  readonly event: 'RuleRefused';
  readonly session: string;
  readonly number: number;
  readonly message: string;
}

export interface SessionSwapped {
  readonly event: 'SessionSwapped';
  readonly session: string;
  readonly transfer: Transfer;
}

/** Its breakpoints, rules, watches or holder have changed. */
export interface SessionChanged {
  readonly event: 'SessionChanged';
  readonly session: string;
}

/** `done` of the `total` prompts of a shard are computed. */
export interface CollectionProgressed {
  readonly event: 'CollectionProgressed';
  readonly session: string;
  readonly done: number;
  readonly total: number;
}

/**
 * These cells (numbered row by row of `places`) of a sweep of `total` now have `values`, one for each metric;
 * `unedited` are the metrics without an edit. `recipe` as in Swept.
 */
export interface SweepProgressed {
  readonly event: 'SweepProgressed';
  readonly session: string;
  readonly places: readonly (readonly (number | Float | string)[])[];
  readonly unedited: readonly Float[];
  readonly done: number;
  readonly total: number;
  readonly cells: readonly number[];
  readonly values: readonly (readonly Float[])[];
  readonly recipe: string;
}

export type WireEvent =
  | WorkProgressed
  | EventsMissed
  | SessionOpened
  | SessionClosed
  | SessionRunning
  | TokenSampled
  | SessionPaused
  | SessionFinished
  | SessionEdited
  | SessionFailed
  | RuleRefused
  | SessionSwapped
  | SessionChanged
  | CollectionProgressed
  | SweepProgressed;
