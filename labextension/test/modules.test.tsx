/** @jest-environment jsdom */

import { fireEvent, screen } from '@testing-library/react';

import { Modules } from '../src/panels/modules';
import { breakpoint, session } from './double';
import { Drawn, drawn, settled } from './drawn';

async function tree(more: Parameters<typeof session>[1] = {}): Promise<Drawn> {
  const panel = drawn(Modules, () => ({ reply: 'Modules', modules: [] }));
  await panel.has(session('a', more));
  panel.channel.asked.length = 0;
  return panel;
}

const row = (name: string): HTMLElement => screen.getByRole('treeitem', { name });
const press = (key: string): Promise<void> =>
  settled(() => fireEvent.keyDown(document.activeElement!, { key }));
const focused = (): string | null => document.activeElement!.getAttribute('aria-label');

test('the stop is marked at its layer, and at its point when the layer is open', async () => {
  const { service } = await tree({ state: 'paused', stopped_at: 'z.1' });
  expect(row('Layer 1, stopped here').className).toContain('djinn-mod-stop');
  await settled(() => (service.model.opened = new Set(['layer 1'])));
  expect(row('z, stopped here').getAttribute('aria-level')).toBe('2');
  expect(row('Layer 1').getAttribute('aria-expanded')).toBe('true');
});

test('a click sets a breakpoint where there is none, and removes the one that is there', async () => {
  const panel = await tree({ breakpoints: [breakpoint(7, 'resid_post.2')] });
  await settled(() => fireEvent.click(row('Layer 0')));
  await settled(() => fireEvent.click(row('Layer 2, breakpoint')));
  expect(panel.channel.asked.map(({ request }) => request)).toEqual([
    { request: 'SetBreakpoint', session: 'a', site: 'resid_post.0', when: null, once: false },
    { request: 'ClearBreakpoints', session: 'a', sites: ['7'] }
  ]);
});

test('arrows walk and open the tree as a tree is walked, and Enter sets a breakpoint', async () => {
  const panel = await tree();
  await settled(() => row('embed').focus());
  await press('ArrowDown');
  expect(focused()).toBe('Layer 0');
  await press('ArrowRight');
  expect([...panel.service.model.opened]).toEqual(['layer 0']);
  await press('ArrowDown');
  await press('ArrowDown');
  expect(focused()).toBe('attn_in');
  await press('Enter');
  expect(panel.channel.verbs).toEqual(['SetBreakpoint']);
  await press('ArrowLeft');
  expect(focused()).toBe('Layer 0');
  await press('ArrowLeft');
  expect(panel.service.model.opened.size).toBe(0);
  await press('End');
  expect(focused()).toBe('logits');
});

test('one row at a time can be reached by Tab', async () => {
  await tree({ state: 'paused', stopped_at: 'resid_post.3' });
  const reached = screen.getAllByRole('treeitem').filter(({ tabIndex }) => tabIndex === 0);
  expect(reached.map(item => item.getAttribute('aria-label'))).toEqual(['Layer 3, stopped here']);
});

test('what can be looked at only says so, and a breakpoint that is off', async () => {
  const { service } = await tree({ breakpoints: [breakpoint(1, 'pattern.1', { enabled: false })] });
  expect(row('Layer 1, 1 breakpoint inside').textContent).toContain('1 inside');
  await settled(() => (service.model.opened = new Set(['layer 1'])));
  expect(row('pattern, breakpoint, off').textContent).toContain('read only');
});
