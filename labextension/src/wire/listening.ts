/* Written by docs/write_reference.py from the structs of the package; change those, not this file. */

/** From here on the client hears the events, or no longer. `events` is the number of the latest one. */
export interface Listening {
  readonly reply: 'Listening';
  readonly events: number;
  readonly not_kept: string | null;
}
