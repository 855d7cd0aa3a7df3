import { acrossOf, pictureOf } from '../src/models/picture';
import { pooledOf } from './pooled';

test('the cells are the numbers that came, and full colour is near the largest of them', () => {
  const picture = pictureOf(pooledOf([2, 3], [1, -3, 0, 2, 5, 1]));
  expect([picture.rows, picture.columns]).toEqual([2, 3]);
  expect([...picture.cells]).toEqual([1, -3, 0, 2, 5, 1]);
  expect(picture.limit).toBe(3);
});

test('an infinity has its full colour, NaN none, and neither says what full colour is', () => {
  const { cells, limit } = pictureOf(pooledOf([1, 4], [NaN, Infinity, -Infinity, 2]));
  expect([...cells]).toEqual([0, Infinity, -Infinity, 2]);
  expect(limit).toBe(2);
  expect(pictureOf(pooledOf([1, 1], [NaN])).limit).toBe(1);
});

test('what lies across is all that a position has, of a mean of heads one head', () => {
  expect(acrossOf(pooledOf([1, 1], [0], { shape: [9, 4, 8] }))).toEqual([4, 8]);
  expect(acrossOf(pooledOf([1, 1], [0], { shape: [9, 4, 8], mean_of_heads: true }))).toEqual([8]);
});
