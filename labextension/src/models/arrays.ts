/* Arrays as they come, to numbers, and pooled for a picture as the kernel's views pool theirs. */

import { ArrayJson } from '../wire';

export interface Pooled {
  readonly rows: number;
  readonly columns: number;
  /** Row-major; of each block the entry of largest magnitude. */
  readonly cells: Float32Array;
  /** At full colour: the 99.5th percentile of magnitudes. */
  readonly limit: number;
}

const CLIP = 0.995;

/** The numbers of an array that is float32, float16, float64 or bfloat16. Not finite ones are 0 in a picture. */
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

/** Positions as rows, everything else behind them, in at most `maxRows` x `maxColumns` cells. */
export function pool(
  array: ArrayJson,
  maxRows: number,
  maxColumns: number,
  values: Float32Array = toFloats(array)
): Pooled {
  const tall = array.shape[0] ?? 1;
  const wide = tall === 0 ? 0 : values.length / tall;
  const [rowBlock, columnBlock] = [
    Math.ceil(tall / maxRows) || 1,
    Math.ceil(wide / maxColumns) || 1
  ];
  const [rows, columns] = [Math.ceil(tall / rowBlock), Math.ceil(wide / columnBlock)];
  const cells = new Float32Array(rows * columns);
  for (let row = 0; row < tall; row += 1) {
    const line = Math.floor(row / rowBlock) * columns;
    for (let column = 0; column < wide; column += 1) {
      const value = values[row * wide + column];
      const cell = line + Math.floor(column / columnBlock);
      if (Number.isFinite(value) && Math.abs(value) > Math.abs(cells[cell])) {
        cells[cell] = value;
      }
    }
  }
  return { rows, columns, cells, limit: limitOf(cells) };
}

function limitOf(cells: Float32Array): number {
  const sizes = Float32Array.from(cells, Math.abs).sort();
  return sizes[Math.floor(CLIP * (sizes.length - 1))] || sizes.at(-1) || 1;
}
