/* Values with an axis of heads: which heads they have, and the site of one of them. Pure. */

import { Pooled } from '../wire';

/** Positions, heads, entries: the engine's name for values that have heads. */
const WITH_HEADS = 'T H D';

type Valued = Pick<Pooled, 'site' | 'axes' | 'shape'>;

export function hasHeads({ axes }: Pick<Pooled, 'axes'>): boolean {
  return axes === WITH_HEADS;
}

/** The numbers of the heads in a value: those that its site selects, else all; none where it has no heads. */
export function headsOf(value: Valued): readonly number[] {
  const count = hasHeads(value) ? (value.shape[1] ?? 0) : 0;
  const selected = /\[([\d,]+)\]$/.exec(value.site)?.[1].split(',').map(Number);
  return selected?.length === count ? selected : Array.from({ length: count }, (_, head) => head);
}

/** The site of one head alone. */
export function siteOfHead(site: string, head: number): string {
  return `${site.replace(/\[[\d,]+\]$/, '')}[${head}]`;
}
