/* Written by docs/write_reference.py from the structs of the package; change those, not this file. */

/**
 * The work would begin. `alike` is what all shards of a collection have to say of their values alike, by its names;
 * empty for a sweep.
 */
export interface Checked {
  readonly reply: 'Checked';
  readonly alike: readonly (readonly string[])[];
  readonly not_kept: string | null;
}
