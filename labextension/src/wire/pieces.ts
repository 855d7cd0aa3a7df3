/* Written by docs/write_reference.py from the structs of the package; change those, not this file. */

import {
  ArrayJson,
  Float,
} from './values';

/** The reply is ready: its frames have these `sizes` in bytes, the envelope first. */
export interface InPieces {
  readonly reply: 'InPieces';
  readonly sizes: readonly number[];
  readonly not_kept: string | null;
}

/** The bytes: unchanged where `stride` is None, else packed with it, which took so many `seconds`. */
export interface PieceRead {
  readonly reply: 'PieceRead';
  readonly content: ArrayJson;
  readonly stride: number | null;
  readonly seconds: Float;
  readonly not_kept: string | null;
}

export interface Dropped {
  readonly reply: 'Dropped';
  readonly not_kept: string | null;
}

/** The engine has the bytes up to there; unpacking the piece took so many `seconds`. */
export interface PieceTaken {
  readonly reply: 'PieceTaken';
  readonly seconds: Float;
  readonly not_kept: string | null;
}
