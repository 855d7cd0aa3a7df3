/* Written by docs/write_reference.py from the structs of the package; change those, not this file. */

import {
  Float,
} from './values';

import {
  PersonMemory,
} from './nouns';

/** A person's limits; None is no limit. `running` is in seconds of the last day. */
export interface Quota {
  readonly device: number | null;
  readonly host: number | null;
  readonly disk: number | null;
  readonly sessions: number | null;
  readonly running: number | null;
}

/**
 * One person at an engine. `running_seconds` are the engine's working time for them within the last day;
 * `checkpoint_bytes` are files on disk, beside `memory`. `notebooks` are the present clients; `seen_seconds` is the
 * time since the last message, None where none came since the engine's start. A person sees only the memory of others:
 * all else is None.
 */
export interface PersonDescription {
  readonly memory: PersonMemory;
  readonly sessions: number | null;
  readonly running: number | null;
  readonly checkpoint_bytes: number | null;
  readonly running_seconds: Float | null;
  readonly quota: Quota | null;
  readonly notebooks: number | null;
  readonly seen_seconds: Float | null;
}

/** The engine's own user first, then the persons by name. */
export interface People {
  readonly reply: 'People';
  readonly people: readonly PersonDescription[];
  readonly not_kept: string | null;
}
