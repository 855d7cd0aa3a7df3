/* Written by docs/write_reference.py from the structs of the package; change those, not this file. */

export interface Cleared {
  readonly reply: 'Cleared';
  readonly count: number;
  readonly not_kept: string | null;
}
