/* Written by docs/write_reference.py from the structs of the package; change those, not this file. */

/** The most that a person may have; None is no limit. `running` is in seconds of the last day. */
export interface Quota {
  readonly device: number | null;
  readonly host: number | null;
  readonly disk: number | null;
  readonly sessions: number | null;
  readonly running: number | null;
}
