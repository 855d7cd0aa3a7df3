/* Written by docs/write_reference.py from the structs of the package; change those, not this file. */

import {
  Provenance,
} from './provenance';

export interface ProvenanceRead {
  readonly reply: 'ProvenanceRead';
  readonly provenance: Provenance;
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
