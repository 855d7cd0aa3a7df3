/* The sites of a model: completions, the order of the points, the layer of a site. */

import { ModelDescription, ModuleDescription, PointDescription } from '../wire';

/** The parts of a site's spelling, without its selector. `layer` is null outside the layers and in module paths. */
export interface Spelled {
  readonly point: string;
  readonly layer: number | null;
}

export function spelled(site: string): Spelled {
  const whole = site.replace(/\[[^\]]*\]$/, '');
  const found = /^([a-z_]+)\.(\d+)$/.exec(whole);
  return found ? { point: found[1], layer: Number(found[2]) } : { point: whole, layer: null };
}

/** The points of one layer in the order of a pass, which is the engine's order. */
export function pointsOf(model: ModelDescription, layer: number): readonly PointDescription[] {
  return model.points.filter(({ layers }) => layers?.includes(layer));
}

/** The points outside the layers: those before them, and those after. */
export function modelPoints(
  model: ModelDescription,
  end: 'before' | 'after'
): readonly PointDescription[] {
  const within = model.points.findIndex(({ layers }) => layers !== null);
  return model.points.filter(
    ({ layers, absent }, index) =>
      layers === null && !absent && index < within === (end === 'before')
  );
}

/** Spellings to offer: the residual stream first, because it is used most, then all points, then modules. */
export function completions(
  model: ModelDescription,
  modules: readonly ModuleDescription[]
): string[] {
  const layered = (found: PointDescription): string[] =>
    (found.layers ?? []).map(layer => `${found.point}.${layer}`);
  const residual = model.points.filter(({ point }) => point === 'resid_post').flatMap(layered);
  const others = model.points.flatMap(found =>
    found.layers === null ? (found.absent ? [] : [found.point]) : layered(found)
  );
  const paths = modules.filter(({ path, called }) => path && called === 1).map(({ path }) => path);
  return [...new Set([...residual, ...others, ...paths])];
}

/** Conditions to begin from. */
export const CONDITIONS: readonly string[] = [
  'step == 0',
  'step > 0',
  'position == 4',
  "token == ' the'",
  'norm > 100',
  "top1 == ' Paris'",
  "p(' Paris') > 0.5"
];

/** The number offered at once. */
const OFFERED = 60;

/** Matches that begin with `typed` come before those that contain it. */
export function matching(all: readonly string[], typed: string): string[] {
  const begins = all.filter(name => name.startsWith(typed));
  const contains = all.filter(name => !name.startsWith(typed) && name.includes(typed));
  return [...begins, ...contains].slice(0, OFFERED);
}
