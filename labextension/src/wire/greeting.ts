/* Written by docs/write_reference.py from the structs of the package; change those, not this file. */

import {
  ModelDescription,
} from './nouns';

/**
 * `engine` is this process's own random name, drawn at its start, and `events` the number of its latest event.
 * `anew` is the reason why a signal ended an earlier engine of the client. `methods` are the engine's methods,
 * `left_out` a sentence for each method that it has and cannot use.
 */
export interface Welcome {
  readonly reply: 'Welcome';
  readonly version: string;
  readonly model: ModelDescription;
  readonly attached: readonly string[];
  readonly engine: string;
  readonly events: number;
  readonly anew: string | null;
  readonly methods: readonly (readonly string[])[];
  readonly left_out: readonly string[];
  readonly not_kept: string | null;
}

export interface Departed {
  readonly reply: 'Departed';
  readonly not_kept: string | null;
}

export interface Pong {
  readonly reply: 'Pong';
  readonly not_kept: string | null;
}

/** A liveness check. The client has the replies to all requests up to number `answered`. */
export interface Ping {
  readonly request: 'Ping';
  readonly answered?: number;
}

/** `sessions_kept` are in the journal and return with the next engine of this model. */
export interface ShuttingDown {
  readonly reply: 'ShuttingDown';
  readonly sessions_lost: readonly string[];
  readonly sessions_kept: readonly string[];
  readonly not_kept: string | null;
}

/**
 * Refused while other holders have sessions, or with `forget` while sessions belong to other notebooks, unless
 * `force`. With a journal the sessions return with the next engine of this model, unless `forget`.
 */
export interface Shutdown {
  readonly request: 'Shutdown';
  readonly force?: boolean;
  readonly forget?: boolean;
}

/** From here on the client receives the events, or no longer. `events` is the number of the latest one. */
export interface Listening {
  readonly reply: 'Listening';
  readonly events: number;
  readonly not_kept: string | null;
}

/**
 * The work would begin. `alike` has the values on which all shards of a collection must agree, by name; empty for a
 * sweep.
 */
export interface Checked {
  readonly reply: 'Checked';
  readonly alike: readonly (readonly string[])[];
  readonly not_kept: string | null;
}
