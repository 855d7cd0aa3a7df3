import {
  NO_PAST,
  Past,
  Reading,
  markSwap,
  readingOf,
  remember,
  shapesOf,
  spanOf
} from '../src/models/memory';
import { EngineStatistics } from '../src/wire';

const SLAB = {
  pages: 8,
  pages_free: 5,
  pages_shared: 0,
  page_bytes: 100,
  bytes_allocated: 800,
  bytes_limit: 2000,
  working_copies: 1,
  working_bytes: 50
};

const STATISTICS = {
  weight_bytes: 1000,
  slabs: [SLAB],
  tiers: [{ tier: 'host', bytes_used: 70 }],
  weights: null,
  people: [],
  other_bytes: null,
  budget: {
    bytes_limit: 2000,
    bytes_taken: 970,
    bytes_overdrawn: 0,
    holdings: [{ kind: 'stops and states', bytes_held: 120 }]
  }
} as unknown as EngineStatistics;

function reading(at: number, weights: number, budget: number | null = null): Reading {
  return {
    at,
    bands: { weights, pages: 0, working: 0, stops: 0, free: 0, others: 0 },
    budget,
    host: 0,
    disk: 0,
    people: []
  };
}

function past(...readings: Reading[]): Past {
  return readings.reduce((before, one) => remember(before, one, 60), NO_PAST);
}

test('a reading sorts the bytes: what holds keys and values, what is allocated and free, what is elsewhere', () => {
  const { bands, budget, host, disk } = readingOf(STATISTICS, 5);
  expect(bands).toEqual({
    weights: 1000,
    pages: 300,
    working: 50,
    stops: 120,
    free: 500,
    others: 0
  });
  expect(budget).toBe(3000);
  expect([host, disk]).toEqual([70, 0]);
});

test('the budget of several devices is what all of them hold together', () => {
  const both = { ...STATISTICS.budget!, bytes_limit: 4000 };
  expect(readingOf({ ...STATISTICS, slabs: [SLAB, SLAB], budget: both }, 5).budget).toBe(5000);
});

test('weights that sleep are not on the device', () => {
  const weights = { residency: 'asleep', bytes_total: 1000, bytes_on_device: 0 };
  expect(
    readingOf({ ...STATISTICS, weights } as unknown as EngineStatistics, 5).bands.weights
  ).toBe(0);
});

test('what is older than the window falls off, but for the reading that still held at its start', () => {
  expect(past(reading(0, 1), reading(10, 2), reading(100, 3)).readings.map(({ at }) => at)).toEqual(
    [10, 100]
  );
});

test('a second reading of the same moment replaces the first', () => {
  expect(past(reading(1, 1), reading(1, 2)).readings).toEqual([reading(1, 2)]);
});

test('bands are steps: each value holds until the next reading, the last until now', () => {
  const { paths, top } = shapesOf(past(reading(0, 50), reading(30, 100)), 60, 60, 600, 108);
  expect(top).toBeCloseTo(108);
  expect(paths.weights).toBe(
    'M0.0,58.0L300.0,58.0L300.0,8.0L600.0,8.0L600.0,108.0L300.0,108.0L300.0,108.0L0.0,108.0Z'
  );
});

test('the budget is a line where it is near, and no line where it would flatten the chart', () => {
  expect(shapesOf(past(reading(0, 100, 120)), 10, 60, 600, 100).budgetAt).toBeCloseTo(
    100 * (1 - 1 / 1.08)
  );
  expect(shapesOf(past(reading(0, 100, 9000)), 10, 60, 600, 100).budgetAt).toBeNull();
  expect(shapesOf(past(reading(0, 100)), 10, 60, 600, 100).budgetAt).toBeNull();
});

test('a swap is marked at its time', () => {
  const swap = { engine: 'e', session: 's', transfer: { direction: 'out' } } as never;
  const { marks } = shapesOf(markSwap(past(reading(0, 1)), swap, 45), 60, 60, 600, 100);
  expect(marks.map(({ x }) => x)).toEqual([450]);
});

test('without readings there is nothing to draw', () => {
  expect(shapesOf(NO_PAST, 60, 60, 600, 100).paths.weights).toBe('');
});

test('the chart shows what is known, from half a minute up to the window', () => {
  expect(spanOf(NO_PAST, 60, 600)).toBe(30);
  expect(spanOf(past(reading(0, 1)), 45, 600)).toBe(45);
  expect(spanOf(past(reading(0, 1)), 45, 40)).toBe(40);
});
