/* Written by docs/write_reference.py from the structs of the package; change those, not this file. */

import {
  ModelDescription,
} from './nouns';

/** Ask for a sign of life. The client has the replies to all requests up to number `answered`. */
export interface Ping {
  readonly request: 'Ping';
  readonly answered?: number;
}

/**
 * `engine` is this process's own name, drawn when it began, and `events` the number of its latest event. `anew` is
 * why an earlier engine of the client ended, where a signal ended it.
 */
export interface Welcome {
  readonly reply: 'Welcome';
  readonly version: string;
  readonly model: ModelDescription;
  readonly attached: readonly string[];
  readonly engine: string;
  readonly events: number;
  readonly anew: string | null;
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
