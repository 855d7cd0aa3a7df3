import { completions, modelPoints, pointsOf, spelled } from '../src/models/places';
import { MODEL } from './double';

test('a spelling is taken apart without its selector', () => {
  expect(spelled('z.9[6]')).toEqual({ point: 'z', layer: 9 });
  expect(spelled('logits')).toEqual({ point: 'logits', layer: null });
  expect(spelled('model.layers.3.mlp.output')).toEqual({
    point: 'model.layers.3.mlp.output',
    layer: null
  });
});

test('a layer has the points that exist in it', () => {
  expect(pointsOf(MODEL, 2).map(({ point }) => point)).not.toContain('resid_mid');
  expect(modelPoints(MODEL, 'before').map(({ point }) => point)).toEqual(['embed']);
  expect(modelPoints(MODEL, 'after').map(({ point }) => point)).toEqual(['ln_final', 'logits']);
});

test('completion offers the residual stream first, nothing twice, and modules that run once a pass', () => {
  const modules = [
    { path: 'model.layers.0.mlp', kind: 'MLP', layer: 0, called: 1 },
    { path: 'model.rotary', kind: 'Rotary', layer: null, called: 2 }
  ];
  const offered = completions(MODEL, modules);
  expect(offered.slice(0, 4)).toEqual([
    'resid_post.0',
    'resid_post.1',
    'resid_post.2',
    'resid_post.3'
  ]);
  expect(new Set(offered).size).toBe(offered.length);
  expect(offered).toContain('model.layers.0.mlp');
  expect(offered).not.toContain('model.rotary');
  expect(offered).toContain('embed');
});
