/* Written by docs/write_reference.py from the structs of the package; change those, not this file. */

/** What an engine measured or computed; null when it is not finite. */
export type Float = number | null;

/** Little-endian, row-major. */
export interface ArrayJson {
  readonly dtype: 'bool' | 'uint8' | 'int32' | 'int64' | 'float16' | 'bfloat16' | 'float32' | 'float64';
  readonly shape: readonly number[];
  readonly base64: string;
}
