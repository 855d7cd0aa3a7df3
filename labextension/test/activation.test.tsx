/** @jest-environment jsdom */

import { fireEvent, screen } from '@testing-library/react';

import { Activation } from '../src/panels/activation';
import { SessionDescription, WireRequest } from '../src/wire';
import { engine, refuse, session } from './double';
import { Drawn, drawn, settled } from './drawn';
import { pooledOf } from './pooled';

const STOPPED: Partial<SessionDescription> = {
  state: 'paused',
  stopped_at: 'resid_post.1',
  step: 0
};

const HERE = { session: 'a', number: 1, edition: 1 };
const ELSEWHERE = { session: 'a', number: 2, edition: 2 };
const PAUSED = {
  stop: HERE,
  site: 'resid_post.1',
  step: 0,
  positions: [0, 1],
  texts: ['The', ' sun'],
  norms: [3, null],
  shape: [2, 8],
  axes: 'T D',
  dtype: 'float32',
  influences: {
    edits: [
      { number: 1, site: 'resid_post.1', what: 'scale 0.9', relative_size: 0.1, enabled: true },
      { number: 2, site: 'resid_post.1', what: 'zero at 0', relative_size: 1, enabled: false }
    ]
  }
};
const POOLED = pooledOf([2, 4], [1, -1, 2, 0, 0, 0, 0, 1], { shape: [2, 8], stop: HERE });

function answer(request: WireRequest): unknown {
  switch (request.request) {
    case 'ReadStop':
      return PAUSED;
    case 'ReadPooled':
      return { pooled: POOLED };
    case 'Lens': {
      const text = request.positions?.[0] === 0 ? ' first' : ' last';
      return { stop: HERE, rows: [{ top: [{ token: 5, text, probability: 0.25, logit: 1 }] }] };
    }
    default:
      return { reply: 'Swapped' };
  }
}

async function stopped(more: Partial<SessionDescription> = {}): Promise<Drawn> {
  const panel = drawn(Activation, answer);
  await panel.has(session('a', { ...STOPPED, ...more }));
  return panel;
}

test('it shows the stop: place, edits, norms, heatmap, and what the lens reads at the last position', async () => {
  const { channel } = await stopped();
  expect(channel.verbs).toEqual(['ReadStop', 'ReadPooled', 'Lens']);
  expect(screen.getByText('resid_post.1')).toBeTruthy();
  expect(screen.getByText('scale 0.9')).toBeTruthy();
  expect(screen.getByRole('img').getAttribute('aria-label')).toMatch(/2 positions by 8/);
  expect(screen.getByText('3.00')).toBeTruthy();
  expect(screen.getByText('not finite')).toBeTruthy();
  expect(screen.getByText('\u00b7last')).toBeTruthy();
  expect(screen.getByText('25 %')).toBeTruthy();
});

test('of one feature it shows the values, with their signs', async () => {
  const { has } = drawn(Activation, request =>
    request.request === 'ReadStop'
      ? { ...PAUSED, shape: [2, 1], values: [-3, 0.5] }
      : answer(request)
  );
  await has(session('a', STOPPED));
  expect(screen.getByRole('group', { name: 'Values by position' })).toBeTruthy();
  expect(screen.getByText(/^.3\.00$/)).toBeTruthy();
  expect(screen.getByText('0.500')).toBeTruthy();
  expect(screen.queryByText('norm')).toBeNull();
});

test('where there is no residual stream the lens is not asked for', async () => {
  const { channel, has } = drawn(Activation, request =>
    request.request === 'ReadStop' ? { ...PAUSED, axes: 'T H D' } : answer(request)
  );
  await has(session('a', STOPPED));
  expect(channel.verbs).toEqual(['ReadStop', 'ReadPooled']);
  expect(
    screen.getByText('The logit lens reads the residual stream; resid_post.1 is none.')
  ).toBeTruthy();
});

test('another position is read by the lens when it is chosen, and nothing else is read again', async () => {
  const { channel } = await stopped();
  await settled(() => fireEvent.click(screen.getByLabelText('Read the lens at position 0')));
  expect(channel.verbs).toEqual(['ReadStop', 'ReadPooled', 'Lens', 'Lens']);
  expect(screen.getByText('\u00b7first')).toBeTruthy();
});

test('a session that has left the device is not brought back by being looked at', async () => {
  const { channel } = await stopped({ residency: 'host' });
  expect(channel.verbs).toEqual([]);
  await settled(() => fireEvent.click(screen.getByRole('button', { name: 'Bring it back' })));
  expect(channel.verbs).toEqual(['SwapIn']);
});

test('what was read stays when the session leaves the device afterwards', async () => {
  const { channel, has } = await stopped();
  await has(session('a', { ...STOPPED, residency: 'disk' }));
  expect(channel.verbs).toEqual(['ReadStop', 'ReadPooled', 'Lens']);
  expect(screen.getByText('\u00b7last')).toBeTruthy();
});

test('it is read again when it was edited, and not when it was looked at or its kernel did something else', async () => {
  const { channel, has } = await stopped();
  const same = session('a', STOPPED);
  await has({ ...same, kernel: { id: 'k', state: 'busy' }, idle_since: 61 });
  expect(channel.verbs).toHaveLength(3);
  await has(session('a', { ...STOPPED, stop: { session: 'a', number: 1, edition: 2 } }));
  expect(channel.verbs.slice(3)).toEqual(['ReadStop', 'ReadPooled']);
});

test('another prompt that meets the same breakpoint is read, though nothing else of it is other', async () => {
  const { channel, has } = await stopped();
  await has(session('a', { ...STOPPED, stop: ELSEWHERE }));
  expect(channel.verbs.slice(3)).toEqual(['ReadStop', 'ReadPooled']);
});

test('until another stop is read, what is shown of the one before says that it is past', async () => {
  const { channel, has } = await stopped();
  channel.answer = () => new Promise(() => undefined);
  await has(session('a', { ...STOPPED, stop: ELSEWHERE }));
  expect(screen.getByText(/where it stood/)).toBeTruthy();
  expect(document.querySelector('.djinn-mod-past')).not.toBeNull();
});

test('a session that went on and then left the device shows nothing of the stop before', async () => {
  const { has } = await stopped();
  await has(session('a', { ...STOPPED, stop: ELSEWHERE, residency: 'host' }));
  expect(screen.queryByText('resid_post.1')).toBeNull();
  expect(screen.getByRole('button', { name: 'Bring it back' })).toBeTruthy();
});

test('while the line is down what was not read says when it will be', async () => {
  const { channel, show } = drawn(Activation);
  channel.answer = () => new Promise(() => undefined);
  const there = engine('e1', session('a', STOPPED));
  await show(there);
  expect(screen.getByText('Reading the activation.')).toBeTruthy();
  await show({ ...there, found: { ...there.found, down_since: 1 } });
  expect(screen.getByText('The activation is read when the line is back.')).toBeTruthy();
});

test('what was read of two stops is not shown as one', async () => {
  const panel = drawn(Activation, request =>
    request.request === 'ReadPooled' ? { pooled: { ...POOLED, stop: ELSEWHERE } } : answer(request)
  );
  await panel.has(session('a', STOPPED));
  expect(screen.queryByText('resid_post.1')).toBeNull();
});

test('a pass of one token names it by its position in the line', async () => {
  const decode = {
    ...PAUSED,
    step: 1,
    positions: [5],
    texts: ['The', ' capital', ' of', ' Italy', ' is', ' Rome']
  };
  const panel = drawn(Activation, request =>
    request.request === 'ReadStop' ? { ...decode, norms: [3] } : answer(request)
  );
  await panel.has(session('a', { ...STOPPED, step: 1 }));
  expect(screen.getByText('\u00b7Rome')).toBeTruthy();
  expect(screen.queryByText('The')).toBeNull();
});

test('the stop says whose it is', async () => {
  await stopped();
  expect(document.querySelector('.djinn-Stop-session')?.textContent).toBe('a');
});

test('while the session runs on, the last stop stays and says that it is past', async () => {
  const { has } = await stopped();
  await has(session('a', { state: 'running', stop: null }));
  expect(screen.getByText(/where it stood/)).toBeTruthy();
  await has(session('a', { state: 'idle' }));
  expect(screen.queryByRole('img')).toBeNull();
  expect(screen.getByText(/appears here while the chosen session is stopped/)).toBeTruthy();
});

test('what cannot be read is said, for the session that it is about', async () => {
  const panel = drawn(Activation, () => refuse('The engine has ended.'));
  await panel.has(session('a', STOPPED), session('b'));
  expect(screen.getByText('The engine has ended.')).toBeTruthy();
  await settled(() => panel.service.model.choose({ engine: 'e1', session: 'b' }));
  expect(screen.queryByText('The engine has ended.')).toBeNull();
});

test('each edit of the stop is turned off and on, as long as the stop is the present one', async () => {
  const { channel, has } = await stopped();
  const boxes = (): HTMLInputElement[] => screen.getAllByRole('checkbox');
  expect(boxes().map(({ checked }) => checked)).toEqual([true, false]);
  expect(screen.getByText('relative size 0.100')).toBeTruthy();
  expect(screen.getByText('off')).toBeTruthy();
  await settled(() => fireEvent.click(boxes()[1]));
  const asked = { request: 'EnableEdit', session: 'a', number: 2, enabled: true, stop: HERE };
  expect(channel.asked.at(-1)?.request).toEqual(asked);
  await has(session('a', { state: 'running', stop: null }));
  expect(boxes().every(({ disabled }) => disabled)).toBe(true);
});

const HEADS = { axes: 'T H D', shape: [1, 2, 2] };

/** Answer as of a site of two heads: their mean, and each head. */
function ofHeads(request: WireRequest): unknown {
  if (request.request === 'ReadStop') {
    return { ...PAUSED, ...HEADS, site: 'z.1' };
  }
  if (request.request !== 'ReadPooled') {
    return answer(request);
  }
  const site = request.site ?? 'z.1';
  const shape = site === 'z.1' ? HEADS.shape : [1, 1, 2];
  const more = { ...HEADS, site, shape, mean_of_heads: true };
  const each = pooledOf([2, 2], [10, 20, 30, 40]).cells;
  const heads = {
    cells: { ...each, shape: [2, 1, 2] },
    heads: [0, 1],
    rows_per_cell: 1,
    columns_per_cell: 1
  };
  return { pooled: pooledOf([1, 2], [1, 2], { ...more, heads: request.heads ? heads : null }) };
}

const label = (): string | null => screen.getByRole('img').getAttribute('aria-label');

test('a site with heads shows their mean until one of them is chosen, which is read alone', async () => {
  const { channel, has } = drawn(Activation, ofHeads);
  await has(session('a', { ...STOPPED, stopped_at: 'z.1' }));
  const select = screen.getByLabelText('Heads');
  expect(select.textContent).toBe('mean of 2 headshead 0head 1');
  expect(label()).toMatch(/z\.1 \(mean of 2 heads\): 1 positions by 2\./);
  await settled(() => fireEvent.change(select, { target: { value: '1' } }));
  expect(label()).toMatch(/z\.1 \(head 1\)/);
  const asked = channel.asked.flatMap(({ request }) =>
    request.request === 'ReadPooled' ? [[request.site, request.mean_of_heads]] : []
  );
  expect(asked).toEqual([
    [null, true],
    ['z.1[1]', true]
  ]);
});

test('a head that is read of another stop is not shown as of this one', async () => {
  const { channel, has } = drawn(Activation, ofHeads);
  await has(session('a', { ...STOPPED, stopped_at: 'z.1' }));
  channel.answer = () => ({ pooled: pooledOf([1, 2], [1, 2], { ...HEADS, stop: ELSEWHERE }) });
  const select = screen.getByLabelText('Heads');
  await settled(() => fireEvent.change(select, { target: { value: '1' } }));
  expect(label()).toMatch(/mean of 2 heads/);
});

test('each head of a past stop can be chosen: they came with their mean, and nothing is asked', async () => {
  const { channel, has } = drawn(Activation, ofHeads);
  await has(session('a', { ...STOPPED, stopped_at: 'z.1' }));
  await has(session('a', { state: 'running', stop: null }));
  const before = channel.asked.length;
  const select = screen.getByLabelText('Heads');
  expect(select).toHaveProperty('disabled', false);
  await settled(() => fireEvent.change(select, { target: { value: '1' } }));
  expect(label()).toMatch(/z\.1 \(head 1\): 1 positions by 2\. Full colour at 30/);
  await settled(() => fireEvent.change(select, { target: { value: '0' } }));
  expect(label()).toMatch(/z\.1 \(head 0\): 1 positions by 2\. Full colour at 10/);
  expect(channel.asked.length).toBe(before);
});

test('a head that cannot be read is said, and the mean stays', async () => {
  const { channel, has } = drawn(Activation, ofHeads);
  await has(session('a', { ...STOPPED, stopped_at: 'z.1' }));
  channel.answer = () => refuse('The engine has ended.');
  await settled(() => fireEvent.change(screen.getByLabelText('Heads'), { target: { value: '0' } }));
  expect(screen.getByText('The engine has ended.')).toBeTruthy();
  expect(label()).toMatch(/mean of 2 heads/);
});

test('a pooled picture says what a pixel is made of', async () => {
  const wide = {
    rows_per_cell: 8,
    columns_per_cell: 32,
    dtype: 'float32',
    not_finite: 3,
    cells: { ...POOLED.cells, dtype: 'bfloat16' as const }
  };
  const { has } = drawn(Activation, request =>
    request.request === 'ReadPooled' ? { pooled: { ...POOLED, ...wide } } : answer(request)
  );
  await has(session('a', STOPPED));
  expect(document.querySelector('figcaption')?.textContent).toMatch(
    /8 positions a row \u00b7 32 values a column \u00b7 the largest of them drawn \u00b7 float32 rounded to bfloat16 \u00b7 3 not finite/
  );
});

test('edits are undone by a button, as long as the stop is the present one', async () => {
  const { channel, has } = await stopped();
  await settled(() => fireEvent.click(screen.getByRole('button', { name: 'Undo the edits' })));
  expect(channel.verbs.at(-1)).toBe('RevertEdits');
  await has(session('a', { state: 'running', stop: null }));
  expect(screen.getByRole('button', { name: 'Undo the edits' })).toHaveProperty('disabled', true);
});
