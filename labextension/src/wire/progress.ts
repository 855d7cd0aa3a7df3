/* Written by docs/write_reference.py from the structs of the package; change those, not this file. */

import {
  WorkProgressed,
} from './events';

export type Doing = 'sweeping' | 'collecting' | 'computing losses' | 'computing logits' | 'reading heads' | 'attributing' | 'patching edges';

/**
 * `done` of `total` cells, prompts, lines or layers; `total` is None where more may follow than the engine
 * was asked for yet.
 */
export interface Progress {
  readonly doing: 'sweeping' | 'collecting' | 'computing losses' | 'computing logits' | 'reading heads' | 'attributing' | 'patching edges';
  readonly done: number;
  readonly total: number | null;
}

/** The work in a session is so far, told some times a second. */
export interface WorkProgressed {
  readonly event: 'WorkProgressed';
  readonly session: string;
  readonly progress: Progress;
}
