/* An engine's memory over the last minutes, and the chart's shapes. Pure: without React and clocks. */

import { Swap } from './live';
import { EngineStatistics, PersonMemory } from '../wire';

/** The bands of the chart, from the bottom up, then the memory off the device. */
export const BANDS = ['weights', 'pages', 'working', 'stops', 'free', 'others'] as const;
export type Band = (typeof BANDS)[number];

export interface Reading {
  readonly at: number;
  readonly bands: Readonly<Record<Band, number>>;
  readonly budget: number | null;
  readonly host: number;
  readonly disk: number;
  /** Empty if all sessions are the engine's own user's. */
  readonly people: readonly PersonMemory[];
}

export interface Mark {
  readonly at: number;
  readonly swap: Swap;
}

export interface Past {
  readonly readings: readonly Reading[];
  readonly marks: readonly Mark[];
}

export const NO_PAST: Past = { readings: [], marks: [] };

/** `pages` hold keys and values, `free` is allocated and unused, `stops` are the sessions' other tensors; all in bytes,
    on the device unless named. */
export function readingOf(statistics: EngineStatistics, at: number): Reading {
  const { slabs, weights, tiers, budget } = statistics;
  const sum = (value: (slab: EngineStatistics['slabs'][number]) => number): number =>
    slabs.reduce((total, slab) => total + value(slab), 0);
  const allocated = sum(slab => slab.bytes_allocated);
  const pages = sum(slab => (slab.pages - slab.pages_free) * slab.page_bytes);
  const limits = slabs.map(slab => slab.bytes_limit);
  const tier = (name: string): number => tiers.find(one => one.tier === name)?.bytes_used ?? 0;
  const weightBytes = weights?.bytes_on_device ?? statistics.weight_bytes;
  return {
    at,
    bands: {
      weights: weightBytes,
      pages,
      working: sum(slab => slab.working_bytes),
      stops: budget?.holdings.find(one => one.kind === 'stops and states')?.bytes_held ?? 0,
      free: Math.max(0, allocated - pages),
      others: statistics.other_bytes ?? 0
    },
    budget: limits.length ? weightBytes + (budget?.bytes_limit ?? Math.max(...limits)) : null,
    host: tier('host'),
    disk: tier('disk'),
    people: statistics.people
  };
}

/** The past with one more reading, without those older than `seconds`, except the one that still held then. */
export function remember(past: Past, reading: Reading, seconds: number): Past {
  const since = reading.at - seconds;
  const readings = [...past.readings.filter(({ at }) => at < reading.at), reading];
  const older = readings.filter(({ at }) => at < since).length;
  return {
    readings: readings.slice(Math.max(0, older - 1)),
    marks: past.marks.filter(({ at }) => at >= since)
  };
}

export function markSwap(past: Past, swap: Swap, at: number): Past {
  return { ...past, marks: [...past.marks, { at, swap }] };
}

/** The seconds that the chart shows: all known ones, between half a minute and `longest`. */
export function spanOf(past: Past, now: number, longest: number): number {
  return Math.min(longest, Math.max(30, now - (past.readings[0]?.at ?? now)));
}

export interface Shapes {
  readonly paths: Readonly<Record<Band, string>>;
  readonly budgetAt: number | null;
  readonly marks: readonly { readonly x: number; readonly mark: Mark }[];
  readonly top: number;
}

/** SVG paths in a box of `width` x `height`, for the `seconds` before `now`. A reading holds until the next. */
export function shapesOf(
  past: Past,
  now: number,
  seconds: number,
  width: number,
  height: number
): Shapes {
  const x = (at: number): number =>
    Math.max(0, Math.min(width, width * (1 - (now - at) / seconds)));
  const total = ({ bands }: Reading): number => BANDS.reduce((sum, band) => sum + bands[band], 0);
  const peak = Math.max(1, ...past.readings.map(total));
  const budget = past.readings.at(-1)?.budget ?? null;
  const top = 1.08 * (budget !== null && budget < 1.6 * peak ? Math.max(peak, budget) : peak);
  const y = (bytes: number): number => height * (1 - bytes / top);
  const below = past.readings.map(() => 0);
  const paths = {} as Record<Band, string>;
  for (const band of BANDS) {
    const floor = [...below];
    past.readings.forEach(({ bands }, index) => (below[index] += bands[band]));
    paths[band] = area(past.readings, floor, below, x, y, x(now));
  }
  return {
    paths,
    budgetAt: budget !== null && budget <= top ? y(budget) : null,
    marks: past.marks.map(mark => ({ x: x(mark.at), mark })),
    top
  };
}

function area(
  readings: readonly Reading[],
  floor: readonly number[],
  ceiling: readonly number[],
  x: (at: number) => number,
  y: (bytes: number) => number,
  end: number
): string {
  const steps = readings.map((reading, index) => ({
    from: x(reading.at),
    to: index + 1 < readings.length ? x(readings[index + 1].at) : end,
    index
  }));
  const point = (at: number, bytes: number): string => `${at.toFixed(1)},${y(bytes).toFixed(1)}`;
  const over = steps.flatMap(({ from, to, index }) => [
    point(from, ceiling[index]),
    point(to, ceiling[index])
  ]);
  const under = steps.flatMap(({ from, to, index }) => [
    point(from, floor[index]),
    point(to, floor[index])
  ]);
  return steps.length ? `M${[...over, ...under.reverse()].join('L')}Z` : '';
}
