/* Written by docs/write_reference.py from the structs of the package; change those, not this file. */

import {
  ArrayJson,
  Float,
} from './values';

import {
  StopIdentity,
} from './nouns';

/**
 * Heads of a value, each pooled alone, as a view draws them side by side. `cells` are [heads, rows, columns],
 * rounded and exact as those of `Pooled` are; `heads` are the numbers of the heads in it, which are the first ones.
 */
export interface PooledHeads {
  readonly cells: ArrayJson;
  readonly heads: readonly number[];
  readonly rows_per_cell: number;
  readonly columns_per_cell: number;
}

/**
 * The largest entries of each head at the last positions, the largest first and of equal ones the first: `places`
 * [positions, heads, entries] are their indices in the head, `values` themselves, to the last bit. There are as many
 * as asked for, or as a head has entries.
 */
export interface Strongest {
  readonly places: ArrayJson;
  readonly values: ArrayJson;
}

/**
 * A site's value in the stopped pass as a view draws it, and nothing to compute with; `Snapshot` has the value.
 *
 * A cell of `cells`, [rows, columns], is the number of largest magnitude in a block of `rows_per_cell` positions by
 * `columns_per_cell` features, heads and features lying one after the other: of a number and its opposite the positive
 * one, infinities included, NaN only where there is nothing else. `alone` has a row of columns for each position that
 * was asked for so. Either is rounded to bfloat16 where it is pooled and `dtype` has more than 16 bits: a colour shows
 * no more. Where each number has a cell of its own, the cells are the numbers. `last` are the numbers of the last
 * positions, as many as were asked for, in their own dtype and shape: [positions, ...]. `heads` and `strongest` are
 * of a value that has heads, where they were asked for.
 *
 * `shape`, `dtype`, `positions`, `lowest`, `highest` (of its finite numbers, None where there are none) and
 * `not_finite`, a count, are those of the value itself, to the last bit; with `mean_of_heads` the last three and the
 * cells are of the mean over its heads. `stop` is what it was read from.
 */
export interface Pooled {
  readonly site: string;
  readonly cells: ArrayJson;
  readonly rows_per_cell: number;
  readonly columns_per_cell: number;
  readonly alone: ArrayJson | null;
  readonly last: ArrayJson | null;
  readonly mean_of_heads: boolean;
  readonly axes: string;
  readonly shape: readonly number[];
  readonly positions: readonly number[];
  readonly dtype: string;
  readonly lowest: Float | null;
  readonly highest: Float | null;
  readonly not_finite: number;
  readonly stop: StopIdentity;
  readonly exactness: 'exact' | 'recomputed' | 'fast' | 're-run from the committed cache' | 'run ahead' | 'recomputed from q and k';
  readonly heads: PooledHeads | null;
  readonly strongest: Strongest | null;
}

export interface PooledRead {
  readonly reply: 'PooledRead';
  readonly pooled: Pooled;
  readonly not_kept: string | null;
}

/**
 * A site's value in the stopped pass, pooled to at most `rows` by `columns` cells. `site`, `positions` and `ahead`
 * are as of Inspect. The positions in `alone` are pooled across only, besides; so many at the end as `last` says are
 * sent whole, too. `mean_of_heads` pools the mean of the heads of a value that has them.
 *
 * `heads` pools each of the first `most_heads` heads alone besides, to so many cells in all of them together; a value
 * without heads has none. `strongest` sends so many entries of each head at the last `strongest_at` positions. Cells
 * are in the value's own dtype where they are not to be `rounded`, for views that write numbers.
 */
export interface ReadPooled {
  readonly request: 'ReadPooled';
  readonly session: string;
  readonly site?: string | null;
  readonly positions?: readonly number[] | null;
  readonly ahead?: boolean;
  readonly rows?: number;
  readonly columns?: number;
  readonly alone?: readonly number[] | null;
  readonly last?: number;
  readonly mean_of_heads?: boolean;
  readonly heads?: number;
  readonly most_heads?: number;
  readonly strongest?: number;
  readonly strongest_at?: number;
  readonly rounded?: boolean;
}
