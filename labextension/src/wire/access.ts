/* Written by docs/write_reference.py from the structs of the package; change those, not this file. */

export type Access = 'read' | 'write';

/** A person with whom a session is shared: to `read`, or also to `write`, which is all but to close or share it. */
export interface SharedWith {
  readonly person: string;
  readonly access: 'read' | 'write';
}
