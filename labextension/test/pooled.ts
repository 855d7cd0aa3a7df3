/* Values as an engine pools them, for tests. */

import { Pooled } from '../src/wire';

export function pooledOf(
  shape: readonly [number, number],
  cells: readonly number[],
  more: Partial<Pooled> = {}
): Pooled {
  const bytes = new Uint8Array(new Float32Array(cells).buffer);
  return {
    site: 'resid_post.1',
    cells: { dtype: 'float32', shape, base64: btoa(String.fromCharCode(...bytes)) },
    rows_per_cell: 1,
    columns_per_cell: 1,
    alone: null,
    last: null,
    mean_of_heads: false,
    axes: 'T D',
    shape,
    positions: Array.from({ length: shape[0] }, (_, position) => position),
    dtype: 'float32',
    lowest: -1,
    highest: 1,
    not_finite: 0,
    stop: { session: 'a', number: 1, edition: 1 },
    exactness: 'exact',
    heads: null,
    strongest: null,
    ...more
  };
}
