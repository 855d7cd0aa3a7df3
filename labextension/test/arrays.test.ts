import { pool, toFloats } from '../src/models/arrays';
import { ArrayJson } from '../src/wire';

function array(dtype: ArrayJson['dtype'], shape: number[], bytes: ArrayBufferLike): ArrayJson {
  return { dtype, shape, base64: btoa(String.fromCharCode(...new Uint8Array(bytes))) };
}

const floats = (shape: number[], values: number[]): ArrayJson =>
  array('float32', shape, new Float32Array(values).buffer);

test('every floating type comes out as the numbers it went in as', () => {
  const values = [1, -2.5, 0, 0.15625];
  expect([...toFloats(floats([4], values))]).toEqual(values);
  expect([...toFloats(array('float64', [4], new Float64Array(values).buffer))]).toEqual(values);
  const halves = new Uint16Array([0x3c00, 0xc100, 0, 0x3100]);
  expect([...toFloats(array('float16', [4], halves.buffer))]).toEqual(values);
  const brains = new Uint16Array([0x3f80, 0xc020, 0, 0x3e20]);
  expect([...toFloats(array('bfloat16', [4], brains.buffer))]).toEqual(values);
});

test('whole numbers have no picture', () => {
  expect(() => toFloats(array('int32', [1], new Int32Array(1).buffer))).toThrow('int32');
});

test('pooling keeps of each block the entry of largest magnitude, with its sign', () => {
  const { rows, columns, cells } = pool(floats([2, 4], [1, -3, 0, 2, 5, 1, -1, 0]), 1, 2);
  expect([rows, columns]).toEqual([1, 2]);
  expect([...cells]).toEqual([5, 2]);
  expect([...pool(floats([2, 4], [1, -3, 0, 2, 5, 1, -1, 0]), 2, 2).cells]).toEqual([-3, 2, 5, -1]);
});

test('heads and features are one row a position', () => {
  const { rows, columns } = pool(floats([2, 3, 2], Array(12).fill(1)), 96, 128);
  expect([rows, columns]).toEqual([2, 6]);
});

test('what is not finite is left out', () => {
  const { cells, limit } = pool(floats([1, 3], [NaN, Infinity, 2]), 4, 4);
  expect([...cells]).toEqual([0, 0, 2]);
  expect(limit).toBe(2);
});

test('an empty pass has an empty picture', () => {
  expect(pool(floats([0, 4], []), 4, 4)).toMatchObject({ rows: 0, limit: 1 });
});
