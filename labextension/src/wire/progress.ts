/* Written by docs/write_reference.py from the structs of the package; change those, not this file. */

export type Doing = 'sweeping' | 'collecting' | 'computing losses' | 'computing logits' | 'reading heads';

/**
 * `done` of `total` cells, prompts or lines; `total` is None where more may follow than the engine was asked for
 * yet.
 */
export interface Progress {
  readonly doing: 'sweeping' | 'collecting' | 'computing losses' | 'computing logits' | 'reading heads';
  readonly done: number;
  readonly total: number | null;
}
