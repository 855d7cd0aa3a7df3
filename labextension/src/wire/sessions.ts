/* Written by docs/write_reference.py from the structs of the package; change those, not this file. */

import {
  Edit,
} from './edits';

import {
  CheckpointDescription,
  EngineStatistics,
  SamplingChanges,
  SessionDescription,
  StopIdentity,
} from './nouns';

import {
  Provenance,
} from './provenance';

/** `note`: stored work under this name that is not in the session, and why. */
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
 * `fresh` first discards tokens, breakpoints and rules, and with `force` joins too. A new `temporary` session, such as
 * a sweep's, is closed when its holder leaves, and is not in the journal.
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
 * Make a session `name` with the same tokens, stop and rules; the two share pages until one writes. With a `seed`
 * or `sampling` its run draws so from the stop on. With an `edit` its keys (site `k_rot.N`) or values (`v.N`) at
 * committed `positions` are edited, None for all of them; `words` describe the edit. With a `coef` its steering rule
 * number `rule`, None for its only one, is on with that coefficient.
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
  readonly sampling?: SamplingChanges;
  readonly stop?: StopIdentity | null;
}

/** A page of the `total` sessions, from the `first` on. */
export interface Sessions {
  readonly reply: 'Sessions';
  readonly sessions: readonly SessionDescription[];
  readonly first: number;
  readonly total: number;
  readonly not_kept: string | null;
}

/** List the sessions in the order of opening, from the `first` on. */
export interface ListSessions {
  readonly request: 'ListSessions';
  readonly first?: number;
}

export interface Statistics {
  readonly reply: 'Statistics';
  readonly statistics: EngineStatistics;
  readonly not_kept: string | null;
}

export interface ReadStatistics {
  readonly request: 'ReadStatistics';
}

/**
 * Open `session` in the state that the checkpoint `name` (or the file at that path) saved. A session of that name
 * is replaced only with `replace`, one of another notebook only with `force` as well.
 */
export interface RestoreCheckpoint {
  readonly request: 'RestoreCheckpoint';
  readonly session: string;
  readonly name: string;
  readonly replace?: boolean;
  readonly force?: boolean;
  readonly for_holder?: string | null;
  readonly for_notebook?: string | null;
}

export interface DropCheckpoint {
  readonly request: 'DropCheckpoint';
  readonly name: string;
}

/** `path` is the path of the file, empty for a person with a key, who uses its name. */
export interface CheckpointSaved {
  readonly reply: 'CheckpointSaved';
  readonly checkpoint: CheckpointDescription;
  readonly path: string;
  readonly not_kept: string | null;
}

/** Save the session's state in a file called `name`. A file of that name is replaced only with `replace`. */
export interface SaveCheckpoint {
  readonly request: 'SaveCheckpoint';
  readonly session: string;
  readonly name: string;
  readonly replace?: boolean;
}

/** The checkpoints that the caller may see, newest first. `left_out`: so many older ones can be restored by name. */
export interface Checkpoints {
  readonly reply: 'Checkpoints';
  readonly checkpoints: readonly CheckpointDescription[];
  readonly left_out: number;
  readonly not_kept: string | null;
}

export interface ListCheckpoints {
  readonly request: 'ListCheckpoints';
}

/**
 * `stores` are the places where the engine looks for moving sessions: of its journal, and of `--moves`. `folder`:
 * it looks in a folder too, which may differ from the other engine's. `person` is the caller, by a key; None is the
 * engine's own user.
 */
export interface ProvenanceRead {
  readonly reply: 'ProvenanceRead';
  readonly provenance: Provenance;
  readonly stores: readonly string[];
  readonly folder: boolean;
  readonly person: string | null;
  readonly not_kept: string | null;
}

export interface SentAway {
  readonly reply: 'SentAway';
  readonly bytes_written: number;
  readonly not_kept: string | null;
}

/** `stayed`: the session is here. */
export interface MoveSettled {
  readonly reply: 'MoveSettled';
  readonly stayed: boolean;
  readonly not_kept: string | null;
}
