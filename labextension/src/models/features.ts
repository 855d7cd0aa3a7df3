/* The features of an added module at a stop: the strongest, and those with breakpoints. Pure. */

/** A feature by its number, and its value at the last position of the pass. */
export interface Feature {
  readonly number: number;
  readonly value: number;
}

/** The number of features listed, besides those with breakpoints. */
export const LISTED = 8;

/** The values at a position with the largest magnitudes, without zeros, and those of the features `kept`. */
export function strongest(values: Float32Array, kept: readonly number[] = []): Feature[] {
  const numbers = [...values.keys()].filter(number => values[number] !== 0);
  const listed = numbers
    .sort((a, b) => Math.abs(values[b]) - Math.abs(values[a]) || a - b)
    .slice(0, LISTED);
  const besides = kept.filter(number => number < values.length && !listed.includes(number));
  return [...listed, ...besides].map(number => ({ number, value: values[number] }));
}

/** The site of one feature. */
export function featureSite(module: string, number: number): string {
  return `${module}[${number}]`;
}

/** The numbers of a module's single features among these sites. */
export function featuresIn(sites: readonly string[], module: string): number[] {
  const own = sites.filter(site => site.startsWith(`${module}[`) && /\[\d+\]$/.test(site));
  return own.map(site => Number(site.slice(module.length + 1, -1)));
}
