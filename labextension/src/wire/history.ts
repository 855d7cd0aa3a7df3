/* Written by docs/write_reference.py from the structs of the package; change those, not this file. */

import {
  StopDescription,
} from './nouns';

import {
  Branch,
} from './readings';

export interface HistoryRead {
  readonly reply: 'History';
  readonly stops: readonly StopDescription[];
  readonly present: number | null;
  readonly not_kept: string | null;
}

/** One branch for each session, in the order of opening: a fork after its parent, where that is still there. */
export interface Tree {
  readonly reply: 'Tree';
  readonly branches: readonly Branch[];
  readonly not_kept: string | null;
}

export interface ReadHistory {
  readonly request: 'ReadHistory';
  readonly session: string;
}

/** The stops of all sessions, and which forks they share them with. */
export interface ReadTree {
  readonly request: 'ReadTree';
}
