import { shareHeight } from '../src/application/heights';

const equal = (height: number) => ({ height, weight: 1 });

test('panels with little to show have no more than that, and the others share the rest', () => {
  expect(shareHeight([equal(100), equal(40), equal(900), equal(900)], 600)).toEqual([
    100, 40, 230, 230
  ]);
});

test('what is left over goes to the panel that shows most', () => {
  expect(shareHeight([equal(100), equal(40), equal(200)], 600)).toEqual([100, 40, 460]);
});

test('a panel of more weight has more of what is short', () => {
  const heights = shareHeight([equal(900), { height: 900, weight: 2 }], 600);
  expect(heights).toEqual([200, 400]);
});

test('folded panels have none, and all is given away, whatever is wished', () => {
  for (let seed = 1; seed < 200; seed += 1) {
    const wishes = [3, 5, 7, 11, 13].map(factor => ({
      height: ((seed * factor * 37) % 11 < 3 ? 0 : (seed * factor * 53) % 700) || 0,
      weight: 1 + ((seed * factor) % 3)
    }));
    const heights = shareHeight(wishes, 640);
    wishes.forEach(({ height }, index) => height === 0 && expect(heights[index]).toBe(0));
    if (wishes.some(({ height }) => height > 0)) {
      expect(heights.reduce((a, b) => a + b)).toBeCloseTo(640);
    }
    expect(Math.min(...heights)).toBeGreaterThanOrEqual(0);
  }
});
