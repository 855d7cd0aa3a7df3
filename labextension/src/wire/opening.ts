/* Written by docs/write_reference.py from the structs of the package; change those, not this file. */

import {
  Edit,
} from './edits';

import {
  SessionDescription,
  StopIdentity,
} from './nouns';

/** `note`: what was kept under this name and is not in the session, and why. */
export interface Opened {
  readonly reply: 'Opened';
  readonly session: SessionDescription;
  readonly created: boolean;
  readonly note: string | null;
  readonly not_kept: string | null;
}

/**
 * Open or attach. A live session of another holder needs `join`.
 *
 * `fresh` forgets tokens, breakpoints and rules first, and with `force` joins too. A new session that is `temporary`,
 * as a sweep's, is closed when its holder goes, and is not in the journal.
 */
export interface Open {
  readonly request: 'Open';
  readonly session: string;
  readonly join?: boolean;
  readonly fresh?: boolean;
  readonly temporary?: boolean;
  readonly force?: boolean;
  readonly for_holder?: string | null;
  readonly for_notebook?: string | null;
}

export interface Described {
  readonly reply: 'Described';
  readonly session: SessionDescription;
  readonly not_kept: string | null;
}

export interface Describe {
  readonly request: 'Describe';
  readonly session: string;
}

/** The user has seen that the session was recomputed after a recovery; from now on it counts as exact again. */
export interface AcceptRecomputed {
  readonly request: 'AcceptRecomputed';
  readonly session: string;
}

export interface Detached {
  readonly reply: 'Detached';
  readonly not_kept: string | null;
}

export interface Closed {
  readonly reply: 'Closed';
  readonly pages_freed: number;
  readonly not_kept: string | null;
}

export interface Close {
  readonly request: 'Close';
  readonly session: string;
  readonly force?: boolean;
  readonly for_holder?: string | null;
  readonly for_notebook?: string | null;
}

/**
 * Make a session `name` with the same tokens, stop and rules; pages are shared until one of the two writes. With a
 * `seed` it draws from here on as a run that begins with that seed. With an `edit` its keys (site `k_rot.N`) or values
 * (`v.N`) at committed `positions` are edited, None for all of them; `words` say what the edit was made of. With a
 * `coef` its steering rule of number `rule`, None for its only one, is on with that coefficient.
 */
export interface Fork {
  readonly request: 'Fork';
  readonly session: string;
  readonly name: string;
  readonly seed?: number | null;
  readonly edit?: Edit | null;
  readonly site?: string | null;
  readonly positions?: readonly number[] | null;
  readonly words?: string | null;
  readonly rule?: number | null;
  readonly coef?: number | null;
  readonly stop?: StopIdentity | null;
}
