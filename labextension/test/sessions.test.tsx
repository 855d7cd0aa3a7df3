/** @jest-environment jsdom */

import { Drag } from '@lumino/dragdrop';
import { fireEvent, screen, within } from '@testing-library/react';
import * as React from 'react';

import { attachCell, mimeOf } from '../src/panels/attaching';
import { CommandIDs } from '../src/panels/names';
import { Sessions } from '../src/panels/sessions';
import { engine, found, refuse, session } from './double';
import { Drawn, drawn, settled } from './drawn';

const MIB = 2 ** 20;
const PARIS = session('work/paris.ipynb', {
  state: 'paused',
  stopped_at: 'z.1',
  device_bytes: MIB
});
const OSLO = session('oslo', { residency: 'disk', device_bytes: 0, disk_bytes: 3 * MIB });

function sessions(): Drawn & { executed: [string, unknown][] } {
  const executed: [string, unknown][] = [];
  const execute = async (id: string, args?: unknown): Promise<void> =>
    void executed.push([id, args]);
  return { ...drawn(props => <Sessions {...props} execute={execute} />), executed };
}

function row(label: string): HTMLElement {
  return screen.getByRole('button', { name: new RegExp(`^Session ${label},`) }).closest('li')!;
}

test('a row says where the session stands and where its bytes are', async () => {
  await sessions().has(PARIS, OSLO);
  expect(row('paris.ipynb').textContent).toContain('at z.1');
  expect(row('paris.ipynb').textContent).toContain('1.00 MiB on the device');
  expect(row('oslo').textContent).toContain('3.00 MiB on disk');
});

test('a session that holds nothing yet has no bytes to tell of, and still a place', async () => {
  const empty = session('new', { device_bytes: 0 });
  const recovered = session('old', { device_bytes: 0, residency: 'host' });
  await sessions().has(empty, recovered);
  expect(row('new').textContent).not.toContain('0 B');
  expect(row('old').textContent).toContain('in host memory');
});

test('what can be done is offered for the chosen session, which a click chooses', async () => {
  const { has, executed } = sessions();
  await has(PARIS, OSLO);
  expect(within(row('oslo')).queryByRole('group')).toBeNull();
  await settled(() => fireEvent.click(screen.getByRole('button', { name: /^Session oslo/ })));
  fireEvent.click(screen.getByRole('button', { name: 'Bring oslo back to the device' }));
  expect(executed).toEqual([[CommandIDs.swapIn, { engine: 'e1', session: 'oslo' }]]);
});

test('a menu asked for on a row is about that session', async () => {
  const { has, service } = sessions();
  await has(PARIS, OSLO);
  await settled(() => fireEvent.contextMenu(row('oslo')));
  expect(service.model.chosen?.session).toBe('oslo');
});

test.each([
  ['resident', 'paused', 'out of', true],
  ['resident', 'running', 'out of', false],
  ['storing', 'paused', 'out of', false],
  ['host', 'paused', 'back to', true],
  ['loading', 'paused', 'back to', false]
] as const)(
  'of a session that is %s and %s, moving %s the device is offered: %s',
  async (residency, state, way, on) => {
    await sessions().has(session('a', { residency, state, device_bytes: 1, host_bytes: 1 }));
    const button = screen.getByRole('button', { name: new RegExp(`a ${way} the device$`) });
    expect((button as HTMLButtonElement).disabled).toBe(!on);
  }
);

test('a row that is dragged carries the cell that attaches to its session', async () => {
  const start = jest.spyOn(Drag.prototype, 'start').mockResolvedValue('copy');
  await sessions().has(PARIS);
  const press = { button: 0, clientX: 10, clientY: 10 };
  fireEvent(row('paris.ipynb'), new MouseEvent('pointerdown', { ...press, bubbles: true }));
  fireEvent(document, new MouseEvent('pointermove', { clientX: 12, clientY: 10 }));
  expect(start).not.toHaveBeenCalled();
  fireEvent(document, new MouseEvent('pointermove', { clientX: 40, clientY: 10 }));
  fireEvent(document, new MouseEvent('pointermove', { clientX: 60, clientY: 10 }));
  expect(start).toHaveBeenCalledTimes(1);
  const { mimeData } = start.mock.contexts[0] as Drag;
  expect(mimeData.getData('text/plain')).toContain('%djinn_use work/paris.ipynb --join');
});

test('a press that is let go of is no drag', async () => {
  const start = jest.spyOn(Drag.prototype, 'start').mockClear();
  await sessions().has(PARIS);
  fireEvent(row('paris.ipynb'), new MouseEvent('pointerdown', { bubbles: true }));
  fireEvent(document, new MouseEvent('pointerup'));
  fireEvent(document, new MouseEvent('pointermove', { clientX: 90 }));
  expect(start).not.toHaveBeenCalled();
});

test('the cell loads what the engine was loaded with, and quotes what needs it', () => {
  expect(attachCell('gpt2 --dtype float16', 'my work/paris.ipynb')).toBe(
    '%load_ext djinn_jupyter\n%djinn_load gpt2 --dtype float16\n%djinn_use "my work/paris.ipynb" --join'
  );
  expect(attachCell('demo', 'say "hi"')).toContain(`%djinn_use 'say "hi"' --join`);
  const [cell] = mimeOf('x').getData('application/vnd.jupyter.cells') as { cell_type: string }[];
  expect(cell).toMatchObject({ cell_type: 'code', source: 'x', outputs: [] });
});

test('what was refused stands there until it is dismissed', async () => {
  const { has, channel, service } = sessions();
  await has(PARIS);
  channel.answer = () => refuse('It is not stopped.');
  await settled(() => void service.resume({ engine: 'e1', session: PARIS.described.name }));
  expect(screen.getByRole('alert').textContent).toBe('It is not stopped.');
  await settled(() => fireEvent.click(screen.getByRole('button', { name: 'Dismiss' })));
  expect(screen.queryByRole('alert')).toBeNull();
});

test('an engine that ended is mourned until that is dismissed', async () => {
  const { has, channel } = sessions();
  await has(PARIS);
  const gone = { e1: 'The engine of demo has ended.' };
  await settled(() =>
    channel.tell({ live: 'delta', sequence: 1, at: 2, appeared: {}, changed: {}, gone })
  );
  expect(screen.getByRole('alert').textContent).toBe('The engine of demo has ended.');
  expect(screen.getByText(/No engine runs/)).toBeTruthy();
  await settled(() => fireEvent.click(screen.getByRole('button', { name: 'Dismiss' })));
  expect(screen.queryByRole('alert')).toBeNull();
});

test('an engine that cannot be spoken to says why, one without sessions that it has none', async () => {
  const reason = 'It runs djinn-jupyter 0.0.1, this server 0.1.0.';
  const other = { ...engine('e2'), found: found('e2', { state: 'refused', reason }) };
  await sessions().show(engine('e1'), other);
  expect(screen.getByText(reason)).toBeTruthy();
  expect(screen.getAllByText('No sessions.')).toHaveLength(1);
});

test('what is missing is named with its remedy', async () => {
  const { channel, has } = sessions();
  await settled(() => channel.stand({ kind: 'absent' }));
  expect(screen.getByText('jupyter server extension enable djinn_jupyter')).toBeTruthy();
  fireEvent.click(screen.getByRole('button', { name: 'Try again' }));
  expect(channel.connects).toBe(2);
  await settled(() => channel.stand({ kind: 'lost', seconds: 4 }));
  expect(screen.getByText(/tried again every 4 s/)).toBeTruthy();
  await settled(() => channel.stand({ kind: 'forbidden' }));
  expect(screen.getByText(/does not let you/)).toBeTruthy();
  await settled(() => channel.stand({ kind: 'differs', version: '0.2.0', spoke: false }));
  expect(screen.getByText(/Restart the Jupyter server; where that does not help/)).toBeTruthy();
  await settled(() => channel.stand({ kind: 'open' }));
  await has(PARIS);
  await settled(() => channel.stand({ kind: 'differs', version: '0.2.0', spoke: true }));
  expect(screen.getByText(/was started again with another build of Djinn/)).toBeTruthy();
  expect(screen.getByRole('button', { name: 'Reload the page' })).toBeTruthy();
  expect(screen.queryByText('paris.ipynb')).toBeNull();
  await settled(() => channel.stand({ kind: 'open' }));
  expect(screen.queryByRole('button', { name: 'Try again' })).toBeNull();
});

test('a screen reader is told when the chosen session stops', async () => {
  await sessions().has(PARIS);
  expect(screen.getByText('paris.ipynb: at z.1').getAttribute('role')).toBe('status');
});

test.each([
  [{ doing: 'sweeping', done: 40, total: 1920, counted: 'cells' }, 'sweeping, 40 of 1,920 cells'],
  [
    { doing: 'collecting', done: 120, total: null, counted: 'prompts' },
    'collecting, 120 prompts so far'
  ],
  [{ doing: 'reading heads', done: 1, total: 3, counted: 'lines' }, 'reading heads, 1 of 3 lines']
] as const)(
  'a session that works says what it does, how far it is and for whom',
  async (progress, said) => {
    const { has } = sessions();
    await has(session('sweep 1', { tokens: 0, progress }, 'work/paris.ipynb'), PARIS);
    expect(row('sweep 1').textContent).toContain(said);
    expect(row('sweep 1').textContent).toContain('for work/paris.ipynb');
    expect(row('sweep 1').textContent).not.toMatch(/idle|0 tokens/);
    expect(row('sweep 1').querySelector('.djinn-mod-running')).not.toBeNull();
    await settled(() => fireEvent.click(screen.getByRole('button', { name: /^Session sweep 1/ })));
    expect(screen.getByRole('button', { name: 'End sweep 1' })).toBeTruthy();
  }
);

const labelled = (label: string) => ({ ...session(label), label });
const shownLabels = (): (string | null)[] =>
  [...document.querySelectorAll('.djinn-Session-label')].map(one => one.textContent);

test('the rows of a batch stand under their session, in the order of their numbers', async () => {
  await sessions().has(...['a/10', 'a-fork', 'a', 'a/2', 'a/2/0', 'b/0', 'c', 'c/7'].map(labelled));
  expect(shownLabels()).toEqual(['a', 'a-fork', 'b/0', 'c', 'c/7']);
  const fold = screen.getByRole('button', { name: '3 rows of a, 3 idle' });
  expect(fold.getAttribute('aria-expanded')).toBe('false');
  await settled(() => fireEvent.click(fold));
  expect(fold.getAttribute('aria-expanded')).toBe('true');
  expect(shownLabels()).toEqual(['a', 'a/2', 'a/2/0', 'a/10', 'a-fork', 'b/0', 'c', 'c/7']);
  const within = [...document.querySelectorAll('.djinn-mod-within .djinn-Session-label')];
  expect(within.map(one => one.textContent)).toEqual(['a/2', 'a/2/0', 'a/10', 'c/7']);
  await settled(() => fireEvent.click(fold));
  expect(shownLabels()).toEqual(['a', 'a-fork', 'b/0', 'c', 'c/7']);
});

test('forty rows are one line, which says how many of them run', async () => {
  const rows = Array.from({ length: 40 }, (_, number) => ({
    ...session(`a/${number}`, { state: number < 2 ? 'running' : 'idle' }),
    label: `a/${number}`
  }));
  await sessions().has(labelled('a'), ...rows);
  expect(screen.getByRole('button', { name: '40 rows of a, 2 running, 38 idle' })).toBeTruthy();
  expect(shownLabels()).toEqual(['a']);
});

test('a batch opens for the row that is chosen, and closes when a person closes it', async () => {
  const { has, service } = sessions();
  await has(...['a', 'a/0', 'a/1'].map(labelled));
  await settled(() => service.model.choose({ engine: 'e1', session: 'a/1' }));
  expect(shownLabels()).toEqual(['a', 'a/0', 'a/1']);
  await settled(() => fireEvent.click(screen.getByRole('button', { name: /^2 rows of a/ })));
  expect(shownLabels()).toEqual(['a']);
});

test('a line that is down is named with its engine, and what would wait is disabled until it is back', async () => {
  const { show, executed } = sessions();
  const at = new Date(2026, 10, 25, 12, 3).getTime() / 1000;
  const lost = {
    ...engine('e1', PARIS),
    found: found('e1', { host: 'gpu-box', pid: null, down_since: at })
  };
  const button = (name: string): HTMLButtonElement => screen.getByRole('button', { name });
  await show(lost);
  expect(screen.getByText(/^The line to gpu-box is down since 12:03/)).toBeTruthy();
  expect(row('paris.ipynb').textContent).toContain('at z.1');
  for (const name of ['Stop the engine of demo', 'Fork paris.ipynb', 'Close paris.ipynb']) {
    expect(button(name).disabled).toBe(true);
    expect(button(name).title).toBe(`${name}. The line to gpu-box is down.`);
    fireEvent.click(button(name));
  }
  expect(executed).toEqual([]);
  await show({ ...lost, found: { ...lost.found, down_since: null } });
  expect(screen.queryByText(/^The line to/)).toBeNull();
  expect(button('Fork paris.ipynb').disabled).toBe(false);
});
