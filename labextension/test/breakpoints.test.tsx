/** @jest-environment jsdom */

import { fireEvent, screen, within } from '@testing-library/react';

import { Breakpoints } from '../src/panels/breakpoints';
import { WireRequest } from '../src/wire';
import { breakpoint, refuse, session } from './double';
import { Drawn, drawn, settled } from './drawn';

const SET = breakpoint(3, 'z.1', { when: 'step == 0', hits: 2 });

function answer(request: WireRequest): unknown {
  return request.request === 'ListModules'
    ? { reply: 'Modules', modules: [] }
    : request.request === 'SetBreakpoint'
      ? { reply: 'BreakpointSet', breakpoint: breakpoint(4, request.site), existed: false }
      : { reply: 'Cleared' };
}

async function breakpoints(...set: ReturnType<typeof breakpoint>[]): Promise<Drawn> {
  const panel = drawn(Breakpoints, answer);
  await panel.has(session('a', { breakpoints: set }));
  panel.channel.asked.length = 0;
  return panel;
}

function type(label: string, text: string): void {
  fireEvent.change(screen.getByLabelText(label), { target: { value: text } });
}

const asked = ({ channel }: Drawn): WireRequest[] => channel.asked.map(({ request }) => request);

test('a site and a condition make a breakpoint, and the form is empty again', async () => {
  const panel = await breakpoints();
  expect(screen.getByRole('button', { name: 'Add' })).toHaveProperty('disabled', true);
  type('Site of the new breakpoint', ' 2 ');
  type('Condition of the new breakpoint', 'norm > 9');
  fireEvent.click(screen.getByLabelText('once'));
  await settled(() => fireEvent.click(screen.getByRole('button', { name: 'Add' })));
  expect(asked(panel)).toEqual([
    { request: 'SetBreakpoint', session: 'a', site: '2', when: 'norm > 9', once: true }
  ]);
  expect(screen.getByLabelText('Site of the new breakpoint')).toHaveProperty('value', '');
});

test('what a row asked and was refused stands in that row, until it is dismissed', async () => {
  const panel = await breakpoints(SET);
  panel.channel.answer = () => refuse('It is gone.');
  const row = (): HTMLElement => screen.getByLabelText('Breakpoint at z.1 is on').closest('li')!;
  await settled(() => fireEvent.click(screen.getByLabelText('Breakpoint at z.1 is on')));
  expect(within(row()).getByRole('alert').textContent).toBe('It is gone.');
  expect(screen.getAllByRole('alert')).toHaveLength(1);
  await settled(() => fireEvent.click(screen.getByRole('button', { name: 'Dismiss' })));
  expect(screen.queryByRole('alert')).toBeNull();
});

test('what is refused is said beside the fields, which keep what was typed', async () => {
  const panel = await breakpoints();
  panel.channel.answer = () => refuse('There is no layer 99.');
  type('Site of the new breakpoint', '99');
  await settled(() => fireEvent.click(screen.getByRole('button', { name: 'Add' })));
  expect(screen.getByRole('alert').textContent).toBe('There is no layer 99.');
  expect(panel.service.model.refusals.size).toBe(0);
  expect(screen.getByLabelText('Site of the new breakpoint')).toHaveProperty('value', '99');
  type('Site of the new breakpoint', '9');
  expect(screen.queryByRole('alert')).toBeNull();
});

test('sites are completed from what the model has', async () => {
  await breakpoints();
  type('Site of the new breakpoint', 'mlp');
  const list = screen.getByLabelText('Site of the new breakpoint').getAttribute('list')!;
  const offered = [...document.getElementById(list)!.children] as HTMLOptionElement[];
  expect(offered.map(({ value }) => value)).toEqual([
    'mlp_out.0',
    'mlp_out.1',
    'mlp_out.2',
    'mlp_out.3'
  ]);
});

test('a row has its site, condition and hits; its box switches it off', async () => {
  const panel = await breakpoints(SET);
  const row = screen.getByRole('listitem');
  expect(row.textContent).toContain('z.1');
  expect(row.textContent).toContain('when step == 0');
  expect(row.textContent).toContain('2 hits');
  await settled(() => fireEvent.click(screen.getByLabelText('Breakpoint at z.1 is on')));
  await settled(() => fireEvent.click(screen.getByLabelText('Remove the breakpoint at z.1')));
  expect(asked(panel)).toEqual([
    { request: 'EnableBreakpoint', session: 'a', number: 3, enabled: false },
    { request: 'ClearBreakpoints', session: 'a', sites: ['3'] }
  ]);
});

async function change(to: string): Promise<void> {
  fireEvent.click(screen.getByLabelText('Change the condition of the breakpoint at z.1'));
  type('Condition of the breakpoint at z.1', to);
  await settled(() => fireEvent.click(screen.getByRole('button', { name: 'Set' })));
}

test('another condition is set before the old one is removed, and what was off stays off', async () => {
  const panel = await breakpoints({ ...SET, enabled: false });
  await change('');
  expect(asked(panel)).toEqual([
    { request: 'SetBreakpoint', session: 'a', site: 'z.1', when: null, once: false },
    { request: 'EnableBreakpoint', session: 'a', number: 4, enabled: false },
    { request: 'ClearBreakpoints', session: 'a', sites: ['3'] }
  ]);
  expect(screen.queryByRole('button', { name: 'Set' })).toBeNull();
});

test('a condition that is refused leaves the breakpoint as it was', async () => {
  const panel = await breakpoints(SET);
  panel.channel.answer = () => refuse('A condition knows no stp.');
  await change('stp == 0');
  expect(panel.channel.verbs).toEqual(['SetBreakpoint']);
  expect(screen.getByRole('alert').textContent).toBe('A condition knows no stp.');
  fireEvent.keyDown(screen.getByLabelText('Condition of the breakpoint at z.1'), { key: 'Escape' });
  expect(screen.queryByRole('button', { name: 'Set' })).toBeNull();
});

test('the same condition again changes one thing: whether it stops once', async () => {
  const panel = await breakpoints(SET);
  panel.channel.answer = () => ({ reply: 'BreakpointSet', breakpoint: SET, existed: true });
  await change('step == 0');
  expect(panel.channel.verbs).toEqual(['SetBreakpoint']);
});

test('steering rules in force are listed with what they do, and can be ended', async () => {
  const panel = drawn(Breakpoints, answer);
  const rule = {
    number: 7,
    site: 'resid_post.2',
    edit: { edit: 'scale', factor: 2 },
    positions: null,
    passes_met: 3,
    passes_changed: 3,
    last_relative_size: 0.5,
    mean_relative_size: 0.5,
    relative_sizes: [],
    what: 'scale 2 at resid_post.2',
    enabled: true,
    onward: null,
    on: null,
    when: null,
    note: null,
    passes_refused: 0,
    trouble: 'The value does not fit.'
  } as const;
  await panel.has(session('a', { rules: [rule] }));
  expect(screen.getByText('scale 2 at resid_post.2')).toBeTruthy();
  expect(screen.getByText('Could not be applied: The value does not fit.')).toBeTruthy();
  expect(screen.getByText('relative size 0.500')).toBeTruthy();
  panel.channel.asked.length = 0;
  await settled(() => fireEvent.click(screen.getByLabelText('The rule at resid_post.2 is on')));
  const off = { request: 'EnableRule', session: 'a', number: 7, enabled: false };
  expect(panel.channel.asked.pop()?.request).toEqual(off);
  await settled(() =>
    fireEvent.click(screen.getByRole('button', { name: 'End the rule at resid_post.2' }))
  );
  expect(asked(panel)).toEqual([{ request: 'Unsteer', session: 'a', number: 7 }]);
});
