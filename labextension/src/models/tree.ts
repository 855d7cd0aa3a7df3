/* The model as rows of a tree: layers with their points and modules, open or closed, and the site of a row. Pure. */

import { Feature, featureSite } from './features';
import { modelPoints, pointsOf, spelled } from './places';
import { spellNumber } from './spell';
import {
  AddedModuleDescription,
  BreakpointDescription,
  ModelDescription,
  ModuleDescription,
  PointDescription
} from '../wire';

export interface TreeRow {
  readonly id: string;
  readonly label: string;
  /** The shape of the value, or the kind of module. */
  readonly detail: string;
  readonly depth: number;
  /** The spelling of a breakpoint here; null if no pass can stop here. */
  readonly site: string | null;
  /** Its value can be read, but not edited. */
  readonly readOnly: boolean;
  /** Null if there is nothing to open. */
  readonly open: boolean | null;
  /** The site of the added module whose features this row opens, or whose feature it is. */
  readonly module?: string;
}

/** The features at the stop by the site of their added module. */
export type FeaturesRead = ReadonlyMap<string, readonly Feature[]>;

const NONE_READ: FeaturesRead = new Map();

export function treeRows(
  model: ModelDescription,
  modules: readonly ModuleDescription[],
  open: ReadonlySet<string>,
  added: readonly AddedModuleDescription[] = [],
  read: FeaturesRead = NONE_READ
): TreeRow[] {
  const layers = Array.from({ length: model.layers }, (_, layer) => layer);
  return [
    ...modelPoints(model, 'before').map(point => pointRow(point, null, 0)),
    ...layers.flatMap(layer =>
      layerRows(model, modules, open, addedRows(added, layer, open, read), layer)
    ),
    ...modelPoints(model, 'after').map(point => pointRow(point, null, 0))
  ];
}

export function layerId(layer: number): string {
  return `layer ${layer}`;
}

function layerRows(
  model: ModelDescription,
  modules: readonly ModuleDescription[],
  open: ReadonlySet<string>,
  added: readonly TreeRow[],
  layer: number
): TreeRow[] {
  const id = layerId(layer);
  const isOpen = open.has(id);
  const site = `resid_post.${layer}`;
  const head = {
    id,
    label: String(layer),
    detail: '',
    depth: 0,
    site,
    readOnly: false,
    open: isOpen
  };
  if (!isOpen) {
    return [head];
  }
  const points = pointsOf(model, layer).map(point => pointRow(point, layer, 1));
  return [head, ...points, ...added, ...moduleRows(modules, open, layer)];
}

/** SAEs and other modules, each a site of its layer: all its features, and below them the single ones. */
function addedRows(
  added: readonly AddedModuleDescription[],
  layer: number,
  open: ReadonlySet<string>,
  read: FeaturesRead
): TreeRow[] {
  return added
    .filter(({ name, site }) => site === `${name}.${layer}`)
    .flatMap(({ name, site, at, kind, features, why_not_edited: why }) => {
      const opens = kind !== 'tuned_lens';
      const isOpen = opens && open.has(site);
      const row = {
        id: site,
        label: name,
        detail: `${features} of ${at}`,
        depth: 1,
        site,
        readOnly: why !== null,
        open: opens ? isOpen : null,
        ...(opens && { module: site })
      };
      return isOpen ? [row, ...featureRows(row, read.get(site) ?? [])] : [row];
    });
}

function featureRows(module: TreeRow & { site: string }, features: readonly Feature[]): TreeRow[] {
  return features.map(({ number, value }) => ({
    id: featureSite(module.site, number),
    label: `[${number}]`,
    detail: spellNumber(value, ''),
    depth: 2,
    site: featureSite(module.site, number),
    readOnly: module.readOnly,
    open: null,
    module: module.site
  }));
}

function pointRow(point: PointDescription, layer: number | null, depth: number): TreeRow {
  const site = layer === null ? point.point : `${point.point}.${layer}`;
  const { point: label, shape: detail, editable } = point;
  return { id: site, label, detail, depth, site, readOnly: !editable, open: null };
}

function moduleRows(
  modules: readonly ModuleDescription[],
  open: ReadonlySet<string>,
  layer: number
): TreeRow[] {
  const own = modules.filter(module => module.layer === layer);
  if (own.length === 0) {
    return [];
  }
  const id = `modules of ${layer}`;
  const isOpen = open.has(id);
  const head = {
    id,
    label: 'modules',
    detail: String(own.length),
    depth: 1,
    site: null,
    readOnly: false,
    open: isOpen
  };
  const root = own.reduce(
    (shortest, { path }) => (path.length < shortest.length ? path : shortest),
    own[0].path
  );
  const rows = own.map(({ path, kind, called }) => ({
    id: path,
    label: path === root ? path.split('.').slice(-2).join('.') : path.slice(root.length + 1),
    detail: kind,
    depth: 2,
    site: called === 1 ? path : null,
    readOnly: false,
    open: null
  }));
  return isOpen ? [head, ...rows] : [head];
}

/** The form in which the sites of breakpoints and stops are compared: no selector, no `.output`. */
export function plainSite(site: string): string {
  return site.replace(/\[[^\]]*\]$/, '').replace(/\.output$/, '');
}

/** The row to mark for a stop: its own, or its layer's while that is closed; null without either. */
export function stopRow(rows: readonly TreeRow[], stop: string | null): string | null {
  if (stop === null) {
    return null;
  }
  const plain = plainSite(stop);
  const own =
    rows.find(row => row.site === stop && row.depth > 0) ??
    rows.find(row => row.site === plain && (row.open === null || row.depth > 0));
  if (own) {
    return own.id;
  }
  const { layer } = spelled(plain);
  const inPath = /\.(\d+)(?:\.|$)/.exec(plain);
  const number = layer ?? (inPath ? Number(inPath[1]) : null);
  return rows.find(row => number !== null && row.id === layerId(number))?.id ?? null;
}

/** The breakpoints at the site of a row, with any selector, except those with their own row. An open layer leaves its
    own to the point below. */
export function breakpointsAt(
  rows: readonly TreeRow[],
  row: TreeRow,
  breakpoints: readonly BreakpointDescription[]
): BreakpointDescription[] {
  if (row.open && row.depth === 0) {
    return [];
  }
  const elsewhere = new Set(rows.filter(one => one !== row).map(one => one.site));
  return breakpoints.filter(
    ({ site }) => site === row.site || (plainSite(site) === row.site && !elsewhere.has(site))
  );
}

/** The number of breakpoints inside a closed layer, besides the one at its end, which its own dot shows. */
export function inside(row: TreeRow, sites: readonly string[]): number {
  if (row.depth !== 0 || row.open !== false) {
    return 0;
  }
  return sites.map(plainSite).filter(site => {
    const inPath = /\.(\d+)(?:\.|$)/.exec(site);
    return site !== row.site && inPath !== null && layerId(Number(inPath[1])) === row.id;
  }).length;
}
