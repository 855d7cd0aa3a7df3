/* Values with an axis of heads: their heads, and the site of one head. Pure. */

import { Pooled } from '../wire';
import { entryOf } from './arrays';

/** Positions, heads, entries: the engine's name for values that have heads. */
const WITH_HEADS = 'T H D';

type Valued = Pick<Pooled, 'site' | 'axes' | 'shape'>;

export function hasHeads({ axes }: Pick<Pooled, 'axes'>): boolean {
  return axes === WITH_HEADS;
}

/** The numbers of the heads in a value: those that its site selects, else all; empty without heads. */
export function headsOf(value: Valued): readonly number[] {
  const count = hasHeads(value) ? (value.shape[1] ?? 0) : 0;
  const selected = /\[([\d,]+)\]$/.exec(value.site)?.[1].split(',').map(Number);
  return selected?.length === count ? selected : Array.from({ length: count }, (_, head) => head);
}

/** The site of one head alone. */
export function siteOfHead(site: string, head: number): string {
  return `${site.replace(/\[[\d,]+\]$/, '')}[${head}]`;
}

/** A head as pooled beside the mean of all, for a stop that is no longer readable; null if it was not pooled. */
export function headKept(pooled: Pooled, head: number): Pooled | null {
  const { heads, shape, site } = pooled;
  const at = heads?.heads.indexOf(head) ?? -1;
  if (heads === null || at < 0) {
    return null;
  }
  return {
    ...pooled,
    site: siteOfHead(site, head),
    cells: entryOf(heads.cells, at),
    rows_per_cell: heads.rows_per_cell,
    columns_per_cell: heads.columns_per_cell,
    shape: [shape[0] ?? 0, 1, ...shape.slice(2)],
    lowest: null, // only the mean has range and count
    highest: null,
    not_finite: 0
  };
}
