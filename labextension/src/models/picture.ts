/* Pooled values from the engine as cells to colour, and a description of the pooling. Pure. */

import { Pooled } from '../wire';
import { toFloats } from './arrays';

export interface Picture {
  readonly rows: number;
  readonly columns: number;
  /** Row-major; NaN is 0. */
  readonly cells: Float32Array;
  /** The value at full colour: the 99.5th percentile of the finite magnitudes. */
  readonly limit: number;
}

const CLIP = 0.995;

export function pictureOf({ cells }: Pooled): Picture {
  const [rows, columns] = cells.shape;
  const numbers = toFloats(cells).map(number => (Number.isNaN(number) ? 0 : number));
  return { rows, columns, cells: numbers, limit: limitOf(numbers.filter(Number.isFinite)) };
}

function limitOf(finite: Float32Array): number {
  const sizes = finite.map(Math.abs).sort();
  return sizes[Math.floor(CLIP * (sizes.length - 1))] || sizes.at(-1) || 1;
}

/** The numbers across; each row is one position's. */
export function acrossOf({ shape, mean_of_heads }: Pooled): readonly number[] {
  return shape.slice(mean_of_heads ? 2 : 1);
}
