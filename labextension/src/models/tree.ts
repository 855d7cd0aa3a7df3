/* The model as rows of a tree: layers with their points and modules, which are open, where a row leads. Pure. */

import { modelPoints, pointsOf, spelled } from './places';
import {
  AddedModuleDescription,
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
  /** What a breakpoint here is spelled; null where nothing can be stopped at. */
  readonly site: string | null;
  /** Its value can be looked at, and not edited. */
  readonly readOnly: boolean;
  /** Null where there is nothing to open. */
  readonly open: boolean | null;
}

export function treeRows(
  model: ModelDescription,
  modules: readonly ModuleDescription[],
  open: ReadonlySet<string>,
  added: readonly AddedModuleDescription[] = []
): TreeRow[] {
  const layers = Array.from({ length: model.layers }, (_, layer) => layer);
  return [
    ...modelPoints(model, 'before').map(point => pointRow(point, null, 0)),
    ...layers.flatMap(layer => layerRows(model, modules, open, added, layer)),
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
  added: readonly AddedModuleDescription[],
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
  return [head, ...points, ...addedRows(added, layer), ...moduleRows(modules, open, layer)];
}

/** SAEs and their like, each as a site of its layer: the whole of its features. */
function addedRows(added: readonly AddedModuleDescription[], layer: number): TreeRow[] {
  return added
    .filter(({ name, site }) => site === `${name}.${layer}`)
    .map(({ name, site, at, features, why_not_edited: why }) => ({
      id: site,
      label: name,
      detail: `${features} of ${at}`,
      depth: 1,
      site,
      readOnly: why !== null,
      open: null
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

/** The form under which breakpoints and stops of one place are compared: no selector, no `.output`. */
export function plainSite(site: string): string {
  return site.replace(/\[[^\]]*\]$/, '').replace(/\.output$/, '');
}

/** The row to mark for a stop: its own, or its layer's while that is closed; null when no row is near. */
export function stopRow(rows: readonly TreeRow[], stop: string | null): string | null {
  if (stop === null) {
    return null;
  }
  const plain = plainSite(stop);
  const own = rows.find(row => row.site === plain && row.open === null);
  if (own) {
    return own.id;
  }
  const { layer } = spelled(plain);
  const inPath = /\.(\d+)(?:\.|$)/.exec(plain);
  const number = layer ?? (inPath ? Number(inPath[1]) : null);
  return rows.find(row => number !== null && row.id === layerId(number))?.id ?? null;
}

/** How many breakpoints lie inside a layer that is closed, besides the one at its end that its own dot shows. */
export function inside(row: TreeRow, sites: readonly string[]): number {
  if (row.depth !== 0 || row.open !== false) {
    return 0;
  }
  return sites.map(plainSite).filter(site => {
    const inPath = /\.(\d+)(?:\.|$)/.exec(site);
    return site !== row.site && inPath !== null && layerId(Number(inPath[1])) === row.id;
  }).length;
}
