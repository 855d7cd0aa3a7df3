/* Written by docs/write_reference.py from the structs of the package; change those, not this file. */

import {
  CheckpointDescription,
} from './nouns';

export interface CheckpointSaved {
  readonly reply: 'CheckpointSaved';
  readonly checkpoint: CheckpointDescription;
  readonly path: string;
  readonly not_kept: string | null;
}

export interface Checkpoints {
  readonly reply: 'Checkpoints';
  readonly checkpoints: readonly CheckpointDescription[];
  readonly not_kept: string | null;
}
