/* Values with an axis of heads: which heads they have, and one of them or their mean as rows. Pure. */

import { Snapshot } from '../wire';

/** Positions, heads, entries: the engine's name for values that have heads. */
const WITH_HEADS = 'T H D';

type Valued = Pick<Snapshot, 'site' | 'axes' | 'value'>;

/** The numbers of the heads in a value: those that its site selects, else all; none where it has no heads. */
export function headsOf({ site, axes, value }: Valued): readonly number[] {
  const count = axes === WITH_HEADS ? (value.shape[1] ?? 0) : 0;
  const selected = /\[([\d,]+)\]$/.exec(site)?.[1].split(',').map(Number);
  return selected?.length === count ? selected : Array.from({ length: count }, (_, head) => head);
}

/** Of values by position, head and entry: those of one head (by its index), or the mean of all where that is null. */
export function ofHead(
  values: Float32Array,
  shape: readonly number[],
  index: number | null
): Float32Array {
  const [rows, heads, entries] = shape;
  const chosen = index === null ? Array.from({ length: heads }, (_, head) => head) : [index];
  const found = new Float32Array(rows * entries);
  for (let cell = 0; cell < found.length; cell += 1) {
    const row = Math.floor(cell / entries);
    const sum = chosen.reduce(
      (total, head) => total + values[(row * heads + head) * entries + (cell % entries)],
      0
    );
    found[cell] = sum / chosen.length;
  }
  return found;
}
