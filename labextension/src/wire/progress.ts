/* Written by docs/write_reference.py from the structs of the package; change those, not this file. */

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
