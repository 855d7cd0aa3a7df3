import { headsOf, ofHead } from '../src/models/heads';

function valued(site: string, axes: string, shape: number[]): Parameters<typeof headsOf>[0] {
  return { site, axes, value: { dtype: 'float32', shape, base64: '' } };
}

test('a value without heads has none, one with heads all, one whose site selects heads those', () => {
  expect(headsOf(valued('resid_post.1', 'T D', [3, 4]))).toEqual([]);
  expect(headsOf(valued('z.1', 'T H D', [3, 2, 4]))).toEqual([0, 1]);
  expect(headsOf(valued('z.1[6,9]', 'T H D', [3, 2, 4]))).toEqual([6, 9]);
});

test.each([
  [1, 1, 1],
  [3, 2, 4],
  [2, 5, 3],
  [0, 4, 2],
  [2, 3, 0]
])(
  'a head is its rows, and the mean of all is their sum by their number (%i x %i x %i)',
  (...shape) => {
    const [rows, heads, entries] = shape;
    const values = Float32Array.from({ length: rows * heads * entries }, (_, cell) => cell ** 2);
    const at = (row: number, head: number, entry: number): number =>
      values[(row * heads + head) * entries + entry];
    const each = Array.from({ length: heads }, (_, head) => ofHead(values, shape, head));
    const mean = ofHead(values, shape, null);
    for (let row = 0; row < rows; row += 1) {
      for (let entry = 0; entry < entries; entry += 1) {
        const cell = row * entries + entry;
        each.forEach((found, head) => expect(found[cell]).toBe(at(row, head, entry)));
        const sum = each.reduce((total, found) => total + found[cell], 0);
        expect(mean[cell]).toBeCloseTo(sum / heads, 3);
      }
    }
    expect(mean).toHaveLength(rows * entries);
  }
);
