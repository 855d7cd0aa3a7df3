/* Written by docs/write_reference.py from the structs of the package; change those, not this file. */

import {
  CheckpointDescription,
} from './nouns';

/**
 * Open `session` as it was when the checkpoint `name` (or the file at that path) was saved. A session of that name
 * is replaced only with `replace`, one of another notebook only with `force` besides.
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

/** `path` is that of the file, empty for a person with a key, who has it by its name. */
export interface CheckpointSaved {
  readonly reply: 'CheckpointSaved';
  readonly checkpoint: CheckpointDescription;
  readonly path: string;
  readonly not_kept: string | null;
}

/** Keep the session as it stands in a file called `name`. A file of that name is replaced only with `replace`. */
export interface SaveCheckpoint {
  readonly request: 'SaveCheckpoint';
  readonly session: string;
  readonly name: string;
  readonly replace?: boolean;
}

/** The checkpoints that the asker may see, newest first. `left_out`: so many older ones can be restored by name. */
export interface Checkpoints {
  readonly reply: 'Checkpoints';
  readonly checkpoints: readonly CheckpointDescription[];
  readonly left_out: number;
  readonly not_kept: string | null;
}

export interface ListCheckpoints {
  readonly request: 'ListCheckpoints';
}
