/** @jest-environment jsdom */

import { fireEvent, screen } from '@testing-library/react';

import { LISTED, featuresIn, strongest } from '../src/models/features';
import { Modules } from '../src/panels/modules';
import { WireRequest } from '../src/wire';
import { breakpoint, refuse, session } from './double';
import { Drawn, drawn, settled } from './drawn';

const SAE = {
  name: 'sae',
  site: 'sae.1',
  at: 'resid_post.1',
  kind: 'sae',
  activation: 'relu',
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
const STOP = { session: 'a', number: 1, edition: 1 };

/** An answer to a reading of the module: so many features, those given by number. */
function values(active: Record<number, number>): object {
  const numbers = Float32Array.from({ length: 48 }, (_, number) => active[number] ?? 0);
  const bytes = String.fromCharCode(...new Uint8Array(numbers.buffer));
  const value = { dtype: 'float32', shape: [1, 48], base64: btoa(bytes) };
  return { reply: 'Inspected', snapshot: { value }, not_kept: null };
}

async function opened(
  active: Record<number, number> | string,
  more: Parameters<typeof session>[1] = {},
  added: Partial<Record<keyof typeof SAE, unknown>> = {}
): Promise<Drawn> {
  const panel = drawn(Modules, (request: WireRequest) => {
    switch (request.request) {
      case 'ListModules':
        return { reply: 'Modules', modules: [] };
      case 'ListAddedModules':
        return { reply: 'AddedModules', modules: [{ ...SAE, ...added }] };
      case 'Inspect':
        return typeof active === 'string' ? refuse(active) : values(active);
      default:
        return { reply: 'Accepted', move: 1 };
    }
  });
  await panel.has(session('a', { state: 'paused', stop: STOP, stopped_at: 'sae.1', ...more }));
  await settled(() => (panel.service.model.opened = new Set(['layer 1', 'sae.1'])));
  return panel;
}

const names = (): (string | null)[] =>
  screen.getAllByRole('treeitem').map(item => item.getAttribute('aria-label'));
const row = (name: string): HTMLElement => screen.getByRole('treeitem', { name });
const features = (): (string | null)[] => names().filter(name => name?.startsWith('['));

test('the strongest features of an open module are listed with their values at the last position', async () => {
  const { channel } = await opened({ 17: 0.5, 3: 2.25, 40: -1 });
  const asked = channel.asked.map(({ request }) => request);
  expect(asked.find(({ request }) => request === 'Inspect')).toEqual({
    request: 'Inspect',
    session: 'a',
    site: 'sae.1',
    positions: [-1]
  });
  expect(features()).toEqual(['[3]', '[40]', '[17]']);
  expect(row('[3]').textContent).toContain('2.25');
  expect(row('[3]').getAttribute('aria-level')).toBe('3');
  expect(row('sae, stopped here').getAttribute('aria-expanded')).toBe('true');
});

test('a click on a feature sets a breakpoint at it and at no other', async () => {
  const panel = await opened({ 3: 2.25, 17: 1 });
  await settled(() => fireEvent.click(row('[17]')));
  expect(panel.channel.asked.at(-1)!.request).toMatchObject({
    request: 'SetBreakpoint',
    site: 'sae.1[17]'
  });
  const stands = { state: 'paused', stop: STOP, stopped_at: 'sae.1' } as const;
  await panel.has(session('a', { ...stands, breakpoints: [breakpoint(5, 'sae.1[17]')] }));
  expect(names()).toContain('sae, stopped here');
  expect(features()).toEqual(['[3]', '[17], breakpoint']);
  await settled(() => fireEvent.click(row('[17], breakpoint')));
  expect(panel.channel.asked.at(-1)!.request).toMatchObject({ sites: ['5'] });
});

test('a feature with a breakpoint is listed though it is not active, and a stop at it is marked there', async () => {
  await opened({ 3: 1 }, { breakpoints: [breakpoint(5, 'sae.1[9]')], stopped_at: 'sae.1[9]' });
  expect(features()).toEqual(['[3]', '[9], breakpoint, stopped here']);
});

test('a click edits a feature while the pass stands at its module, and a refusal stands below', async () => {
  const { channel } = await opened({ 3: 1 });
  await settled(() =>
    fireEvent.click(screen.getByLabelText('Set sae.1[3] to zero at all positions'))
  );
  expect(channel.asked.at(-1)!.request).toEqual({
    request: 'ApplyEdit',
    session: 'a',
    edit: { edit: 'zero' },
    site: 'sae.1[3]',
    stop: STOP
  });
  expect(channel.verbs).not.toContain('SetBreakpoint');
  channel.answer = () => refuse('The value is not finite.');
  const double = screen.getByLabelText('Double sae.1[3] at all positions');
  await settled(() => fireEvent.keyDown(double, { key: 'Enter' }));
  expect(channel.verbs).not.toContain('SetBreakpoint');
  await settled(() => fireEvent.click(double));
  expect(channel.asked.at(-1)!.request).toMatchObject({ edit: { edit: 'scale', factor: 2 } });
  expect(screen.getByRole('alert').textContent).toBe('The value is not finite.');
});

test('elsewhere, and of what is read only, there is no edit', async () => {
  await opened({ 3: 1 }, { stopped_at: 'resid_post.2' });
  expect(features()).toEqual(['[3]']);
  expect(screen.queryByLabelText(/to zero/)).toBeNull();
});

test('of a module that is read only there is no edit', async () => {
  await opened({ 3: 1 }, {}, { why_not_edited: 'It has no decoder.' });
  expect(features()).toEqual(['[3]']);
  expect(screen.queryByLabelText(/to zero/)).toBeNull();
});

test('what cannot be read says why, and nothing is read where nothing stands', async () => {
  const { channel, has } = await opened('sae.1 is not reached yet.');
  expect(screen.getByText('sae.1 is not reached yet.')).toBeTruthy();
  channel.asked.length = 0;
  await has(session('a', { state: 'idle', stopped_at: null, stop: null }));
  expect(screen.getByText(/appear here while the session is stopped/)).toBeTruthy();
  expect(channel.verbs).not.toContain('Inspect');
});

test('a module at rest says so, and is read again when the stop was edited', async () => {
  const { channel, has } = await opened({});
  expect(screen.getByText('No feature of sae.1 is active at the last position.')).toBeTruthy();
  channel.answer = request => (request.request === 'Inspect' ? values({ 7: 1 }) : undefined);
  const stop = { ...STOP, edition: 2 };
  await has(session('a', { state: 'paused', stop, stopped_at: 'sae.1' }));
  expect(features()).toEqual(['[7]']);
});

test('the largest by size are listed, never a zero, and of equals the first', () => {
  const many = Float32Array.from({ length: 40 }, (_, number) => (number % 2 ? number : 0));
  expect(strongest(many).map(({ number }) => number)).toEqual([39, 37, 35, 33, 31, 29, 27, 25]);
  expect(strongest(many).length).toBe(LISTED);
  expect(strongest(Float32Array.from([1, -1, 0]), [2, 99])).toEqual([
    { number: 0, value: 1 },
    { number: 1, value: -1 },
    { number: 2, value: 0 }
  ]);
  expect(featuresIn(['sae.1[4]', 'sae.1', 'sae.1[2,3]', 'sae.11[5]', 'sae.1[*]'], 'sae.1')).toEqual(
    [4]
  );
});
