import { toFloats } from '../src/models/arrays';
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
