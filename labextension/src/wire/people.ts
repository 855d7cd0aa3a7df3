/* Written by docs/write_reference.py from the structs of the package; change those, not this file. */

import {
  Float,
} from './values';

import {
  PersonMemory,
} from './nouns';

/** The most that a person may have; None is no limit. `running` is in seconds of the last day. */
export interface Quota {
  readonly device: number | null;
  readonly host: number | null;
  readonly disk: number | null;
  readonly sessions: number | null;
  readonly running: number | null;
}

/**
 * One person at an engine. `running_seconds` are those that the engine has worked for them within the last day;
 * `checkpoint_bytes` are files on disk, beside `memory`. `notebooks` are the clients that are present; `seen_seconds`
 * ago the last message came, None where none came since the engine began. Of others a person is told the memory
 * alone: all else is None.
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
