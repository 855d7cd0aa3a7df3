/* Written by docs/write_reference.py from the structs of the package; change those, not this file. */

import {
  ArrayJson,
} from './values';

import {
  Circumstances,
  FedTokens,
} from './circumstances';

import {
  WatchDescription,
} from './nouns';

/** A `vector` as wide as the watched site; a session's watches of one site tell their directions apart by `name`. */
export interface Direction {
  readonly name: string;
  readonly vector: ArrayJson;
}

/** `site` None ends all watches; `direction` is the name of one. */
export interface Unwatch {
  readonly request: 'Unwatch';
  readonly session: string;
  readonly site?: string | null;
  readonly direction?: string | null;
}

export interface Watching {
  readonly reply: 'Watching';
  readonly watch: WatchDescription;
  readonly not_kept: string | null;
}

/**
 * Record a site over all runs from now on: its value, or the component of its value along a `direction`. `fresh`
 * forgets what was recorded so far.
 */
export interface Watch {
  readonly request: 'Watch';
  readonly session: string;
  readonly site: string;
  readonly byte_cap?: number;
  readonly fresh?: boolean;
  readonly direction?: Direction | null;
}

/** The line of a run, as far as it was fed when it was read or left, and the passes that it was fed in. */
export interface WatchedLine {
  readonly run: number;
  readonly tokens: readonly number[];
  readonly passes: readonly FedTokens[];
}

/** All that makes the recorded passes of a watch again: the lines of their runs, and the `direction`. */
export interface WatchRecipe {
  readonly lines: readonly WatchedLine[];
  readonly direction: Direction | null;
  readonly made: Circumstances;
}

/**
 * All recorded passes of a site, one value a pass, each with the absolute positions it covers and the run that it
 * belongs to: the session's first prompt is run 1. `made` is what makes them again; None where nothing does, for the
 * reason `unmade`.
 */
export interface WatchRead {
  readonly reply: 'WatchRead';
  readonly watch: WatchDescription;
  readonly axes: string;
  readonly values: readonly ArrayJson[];
  readonly positions: readonly (readonly number[])[];
  readonly runs: readonly number[];
  readonly made: WatchRecipe | null;
  readonly unmade: string;
  readonly not_kept: string | null;
}

/** `direction` is the name of one; None reads the watch of the value. */
export interface ReadWatch {
  readonly request: 'ReadWatch';
  readonly session: string;
  readonly site: string;
  readonly direction?: string | null;
}
