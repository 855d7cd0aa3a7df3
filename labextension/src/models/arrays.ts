/* Arrays from the wire, converted to numbers. */

import { ArrayJson } from '../wire';

/** The numbers of a float32, float16, float64 or bfloat16 array. */
export function toFloats(array: ArrayJson): Float32Array {
  const bytes = Uint8Array.from(atob(array.base64), character => character.charCodeAt(0));
  const { buffer } = bytes;
  switch (array.dtype) {
    case 'float32':
      return new Float32Array(buffer);
    case 'float64':
      return Float32Array.from(new Float64Array(buffer));
    case 'bfloat16':
      return new Float32Array(Uint32Array.from(new Uint16Array(buffer), half => half << 16).buffer);
    case 'float16':
      return Float32Array.from(new Uint16Array(buffer), fromHalf);
    default:
      throw new RangeError(`An array of ${array.dtype} has no picture.`);
  }
}

/** One entry of the first axis. */
export function entryOf({ dtype, shape, base64 }: ArrayJson, index: number): ArrayJson {
  const bytes = atob(base64);
  const size = bytes.length / (shape[0] ?? 1);
  return {
    dtype,
    shape: shape.slice(1),
    base64: btoa(bytes.slice(index * size, (index + 1) * size))
  };
}

function fromHalf(half: number): number {
  const sign = half & 0x8000 ? -1 : 1;
  const exponent = (half >> 10) & 0x1f;
  const fraction = half & 0x3ff;
  if (exponent === 0) {
    return sign * 2 ** -14 * (fraction / 1024);
  }
  return exponent === 31
    ? fraction
      ? NaN
      : sign * Infinity
    : sign * 2 ** (exponent - 15) * (1 + fraction / 1024);
}
