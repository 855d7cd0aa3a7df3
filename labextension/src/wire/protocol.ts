/* Written by docs/write_reference.py from the structs of the package; change those, not this file. */

/** The digest of the messages that this page knows; the server's has to be the same. */
export const PROTOCOL = 'b70942d546d0c47c';
