/* Written by docs/write_reference.py from the structs of the package; change those, not this file. */

/** `code` is the class of `djinn_jupyter.errors` to raise; `message` says what is wrong and what to do. */
export interface Failed {
  readonly reply: 'Failed';
  readonly code: string;
  readonly message: string;
  readonly not_kept: string | null;
}
