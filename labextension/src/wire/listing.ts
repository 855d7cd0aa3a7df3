/* Written by docs/write_reference.py from the structs of the package; change those, not this file. */

import {
  EngineStatistics,
  SessionDescription,
} from './nouns';

/** A page of the `total` sessions, from the `first` on. */
export interface Sessions {
  readonly reply: 'Sessions';
  readonly sessions: readonly SessionDescription[];
  readonly first: number;
  readonly total: number;
  readonly not_kept: string | null;
}

/** List the sessions in the order of their opening, from the `first` on. */
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
