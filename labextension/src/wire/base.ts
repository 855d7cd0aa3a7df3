/* Written by docs/write_reference.py from the structs of the package; change those, not this file. */

import {
  Float,
} from './values';

export type Tier = 'host' | 'disk';

export type Access = 'read' | 'write';

export interface Cleared {
  readonly reply: 'Cleared';
  readonly count: number;
  readonly not_kept: string | null;
}

/** `code` is the class of `djinn_jupyter.errors` to raise; `message` says what is wrong and what to do. */
export interface Failed {
  readonly reply: 'Failed';
  readonly code: string;
  readonly message: string;
  readonly not_kept: string | null;
}

/**
 * `done` of `total` of what is `counted`, such as cells or layers; `total` is None where the engine may still get
 * more work. `doing` is a verb's form: sweeping.
 */
export interface Progress {
  readonly doing: string;
  readonly done: number;
  readonly total: number | null;
  readonly counted: string;
}

/** One move of a session's bytes between the device and a tier: the bytes moved and the duration. */
export interface Transfer {
  readonly direction: 'out' | 'in';
  readonly tier: 'host' | 'disk';
  readonly bytes_moved: number;
  readonly seconds: Float;
  readonly cause: 'asked' | 'pressure' | 'idleness' | 'prefetch' | 'needed' | 'write_through';
  readonly copy_seconds: Float | null;
}

/**
 * A person with whom a session is shared: to `read`, or also to `write`, which allows everything but closing and
 * sharing it.
 */
export interface SharedWith {
  readonly person: string;
  readonly access: 'read' | 'write';
}
