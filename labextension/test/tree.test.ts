import { inside, layerId, plainSite, stopRow, treeRows } from '../src/models/tree';
import { MODEL } from './double';

const MODULES = [
  { path: 'model.layers.1', kind: 'Layer', layer: 1, called: 1 },
  { path: 'model.layers.1.mlp', kind: 'MLP', layer: 1, called: 1 },
  { path: 'model.layers.1.act', kind: 'Act', layer: 1, called: 2 }
];

function labels(open: string[]): string[] {
  return treeRows(MODEL, MODULES, new Set(open)).map(({ label }) => label);
}

test('closed, it has the layers between the points before and after them', () => {
  expect(labels([])).toEqual(['embed', '0', '1', '2', '3', 'ln_final', 'logits']);
});

test('an open layer shows its points in their order, and its modules behind one more row', () => {
  const points = ['resid_pre', 'attn_in', 'pattern', 'z', 'mlp_out', 'resid_post'];
  expect(labels([layerId(1)])).toEqual([
    'embed',
    '0',
    '1',
    ...points,
    'modules',
    '2',
    '3',
    'ln_final',
    'logits'
  ]);
  expect(labels([layerId(1), 'modules of 1'])).toContain('mlp');
});

test('an added module is a row of its layer, and leads to its features', () => {
  const added = {
    name: 'sae',
    site: 'sae.1',
    at: 'resid_post.1',
    kind: 'sae',
    activation: 'jumprelu',
    inputs: 8,
    features: 48,
    folder: '/saes/one',
    digest: 'd',
    bytes_held: 1,
    writes: 'resid_post.1',
    error_term: true,
    why_not_edited: null,
    missing: null,
    note: null
  } as const;
  const rows = treeRows(MODEL, MODULES, new Set([layerId(1), layerId(2)]), [added]);
  const found = rows.filter(({ label }) => label === 'sae');
  expect(found).toEqual([
    {
      id: 'sae.1',
      label: 'sae',
      detail: '48 of resid_post.1',
      depth: 1,
      site: 'sae.1',
      readOnly: false,
      open: false,
      module: 'sae.1'
    }
  ]);
  expect(stopRow(rows, 'sae.1[17]')).toBe('sae.1');
});

test('a row leads to its site; a layer to its output; a module that runs twice a pass to none', () => {
  const rows = treeRows(MODEL, MODULES, new Set([layerId(1), 'modules of 1']));
  const site = (id: string): string | null | undefined => rows.find(row => row.id === id)?.site;
  expect(site(layerId(2))).toBe('resid_post.2');
  expect(site('z.1')).toBe('z.1');
  expect(site('model.layers.1.mlp')).toBe('model.layers.1.mlp');
  expect(site('model.layers.1.act')).toBeNull();
});

test('the stop is marked at its point, or at its layer while that is closed', () => {
  const closed = treeRows(MODEL, MODULES, new Set());
  const open = treeRows(MODEL, MODULES, new Set([layerId(1), 'modules of 1']));
  expect(stopRow(closed, 'z.1[0]')).toBe(layerId(1));
  expect(stopRow(open, 'z.1[0]')).toBe('z.1');
  expect(stopRow(open, 'resid_post.1')).toBe('resid_post.1');
  expect(stopRow(open, 'model.layers.1.mlp.output')).toBe('model.layers.1.mlp');
  expect(stopRow(closed, 'model.layers.1.mlp.output')).toBe(layerId(1));
  expect(stopRow(closed, 'logits')).toBe('logits');
  expect(stopRow(closed, null)).toBeNull();
});

test('a closed layer counts the breakpoints inside it, not the one at its end', () => {
  const rows = treeRows(MODEL, MODULES, new Set([layerId(2)]));
  const sites = ['resid_post.1', 'z.1[0]', 'model.layers.1.mlp.output', 'z.2', 'z.11'];
  expect(
    inside(
      rows.find(({ id }) => id === layerId(1))!,
      sites
    )
  ).toBe(2);
  expect(
    inside(
      rows.find(({ id }) => id === layerId(2))!,
      sites
    )
  ).toBe(0);
});

test('sites are compared without selector and default end', () => {
  expect(plainSite('z.1[0,2]')).toBe('z.1');
  expect(plainSite('model.layers.1.mlp.output')).toBe('model.layers.1.mlp');
  expect(plainSite('model.layers.1.mlp.input')).toBe('model.layers.1.mlp.input');
});
