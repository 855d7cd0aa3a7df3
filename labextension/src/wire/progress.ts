/* Written by docs/write_reference.py from the structs of the package; change those, not this file. */

/**
 * `done` of `total` of what is `counted`, such as cells or layers; `total` is None where more may follow than the
 * engine was asked for yet. `doing` is a verb's form: sweeping.
 */
export interface Progress {
  readonly doing: string;
  readonly done: number;
  readonly total: number | null;
  readonly counted: string;
}
