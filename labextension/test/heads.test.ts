import { headsOf, siteOfHead } from '../src/models/heads';

function valued(site: string, axes: string, shape: number[]): Parameters<typeof headsOf>[0] {
  return { site, axes, shape };
}

test('a value without heads has none, one with heads all, one whose site selects heads those', () => {
  expect(headsOf(valued('resid_post.1', 'T D', [3, 4]))).toEqual([]);
  expect(headsOf(valued('z.1', 'T H D', [3, 2, 4]))).toEqual([0, 1]);
  expect(headsOf(valued('z.1[6,9]', 'T H D', [3, 2, 4]))).toEqual([6, 9]);
});

test('the site of one head selects it, whatever was selected before', () => {
  expect(siteOfHead('z.1', 3)).toBe('z.1[3]');
  expect(siteOfHead('z.1[6,9]', 9)).toBe('z.1[9]');
  expect(siteOfHead('model.layers.1.self_attn.input', 0)).toBe('model.layers.1.self_attn.input[0]');
});
