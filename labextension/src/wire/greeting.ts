/* Written by docs/write_reference.py from the structs of the package; change those, not this file. */

import {
  ModelDescription,
} from './nouns';

/**
 * `engine` is this process's own name, drawn when it began, and `events` the number of its latest event. `anew` is
 * why an earlier engine of the client ended, where a signal ended it. `methods` are those of the engine, `left_out` a
 * sentence for each that it has and cannot use.
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

/** Ask for a sign of life. The client has the replies to all requests up to number `answered`. */
export interface Ping {
  readonly request: 'Ping';
  readonly answered?: number;
}

/** `sessions_kept` are in the journal and come back with the next engine of this model. */
export interface ShuttingDown {
  readonly reply: 'ShuttingDown';
  readonly sessions_lost: readonly string[];
  readonly sessions_kept: readonly string[];
  readonly not_kept: string | null;
}

/**
 * Refused while other holders have sessions, or with `forget` while sessions belong to other notebooks, unless
 * `force`. The sessions come back with the next engine of this
 * model, where a journal is kept, unless `forget`.
 */
export interface Shutdown {
  readonly request: 'Shutdown';
  readonly force?: boolean;
  readonly forget?: boolean;
}

/** From here on the client hears the events, or no longer. `events` is the number of the latest one. */
export interface Listening {
  readonly reply: 'Listening';
  readonly events: number;
  readonly not_kept: string | null;
}

/**
 * The work would begin. `alike` is what all shards of a collection have to say of their values alike, by its names;
 * empty for a sweep.
 */
export interface Checked {
  readonly reply: 'Checked';
  readonly alike: readonly (readonly string[])[];
  readonly not_kept: string | null;
}
