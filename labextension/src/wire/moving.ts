/* Written by docs/write_reference.py from the structs of the package; change those, not this file. */

import {
  Provenance,
} from './provenance';

/**
 * `stores` are those where the engine looks for sessions on their way: of its journal, and of `--moves`.
 * `folder`: it looks in a folder too, which need not be the other engine's. `person` is who asks, by a key; None is
 * the engine's own user.
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
