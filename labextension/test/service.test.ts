import { refusalOf } from '../src/models/refusals';
import { DjinnService } from '../src/service/service';
import { IDjinn } from '../src/tokens';
import { LiveOutcome, LiveSession, StopDescription, WireReply } from '../src/wire';
import { ChannelDouble, engine, refuse, session, snapshot } from './double';

const HERE = { engine: 'e1', session: 'a' };
const STOPPED = session('a', { state: 'paused', stopped_at: 'attn_in.1' }, 'a.ipynb');

function started(): { channel: ChannelDouble; service: DjinnService } {
  const channel = new ChannelDouble();
  const service = new DjinnService(channel, '0.1.0');
  channel.tell(snapshot(0, [engine('e1', STOPPED, session('b', {}, 'b.ipynb'))]));
  return { channel, service };
}

function outcome(sequence: number, reply: Partial<WireReply>, move = 1): LiveOutcome {
  return { live: 'outcome', sequence, ...HERE, request: 'Step', move, reply: reply as WireReply };
}

test('it connects at once and shows the stopped session of a snapshot', () => {
  const { channel, service } = started();
  expect(channel.connects).toBe(1);
  expect(service.model.chosen).toEqual(HERE);
  expect(service.model.stopped).toBe(true);
});

test('a missed message is answered with resync and changes nothing', () => {
  const { channel, service } = started();
  const before = service.model.live;
  channel.tell(outcome(5, { reply: 'Paused' }));
  expect(service.model.live).toBe(before);
  expect(channel.said.at(-1)).toEqual({ say: 'resync' });
});

test('the notebook in front is told once, and again after each snapshot', () => {
  const { channel, service } = started();
  service.focus('b.ipynb');
  service.focus('b.ipynb');
  const focused = { say: 'focus', notebook: 'b.ipynb' };
  expect(channel.said.slice(1)).toEqual([focused]);
  expect(service.model.chosen).toEqual({ engine: 'e1', session: 'b' });
  channel.tell(snapshot(0, []));
  expect(channel.said.slice(2)).toEqual([focused]);
});

test('beside a notebook that has no session a person\u2019s pick is not moved any more', () => {
  const { service } = started();
  service.model.choose({ engine: 'e1', session: 'b' });
  service.focus('c.ipynb');
  expect(service.model.chosen).toBeNull();
  expect(service.model.stopped).toBe(false);
});

test('a notebook that is renamed keeps its session, and what it left behind is known', () => {
  const { channel, service } = started();
  const held = (name: string, path: string): LiveSession => ({
    ...session(name, {}, path),
    kernel: { id: 'k', state: 'idle' }
  });
  channel.tell(snapshot(0, [engine('e1', held('/w/a.ipynb', 'a.ipynb'))]));
  service.focus('a.ipynb');
  service.renamed('z.ipynb');
  expect(channel.said.at(-1)).toEqual({ say: 'focus', notebook: 'z.ipynb' });
  expect(service.model.chosen?.session).toBe('/w/a.ipynb');
  const orphan = session('/w/a.ipynb', { tokens: 9 }, 'a.ipynb');
  channel.tell(snapshot(0, [engine('e1', orphan, held('/w/z.ipynb', 'z.ipynb'))]));
  expect(service.model.chosen?.session).toBe('/w/z.ipynb');
  expect(service.model.left?.session).toBe('/w/a.ipynb');
});

test('a session that the notebook in front opens later is shown, whatever was shown before', () => {
  const { channel, service } = started();
  service.focus('c.ipynb');
  channel.tell(snapshot(0, [engine('e1', STOPPED, session('c', {}, 'c.ipynb'))]));
  expect(service.model.chosen?.session).toBe('c');
  service.model.choose(HERE);
  channel.tell(snapshot(0, [engine('e1', STOPPED, session('c', { tokens: 9 }, 'c.ipynb'))]));
  expect(service.model.chosen).toEqual(HERE);
});

test('it stays with the chosen session where a person wants no following', () => {
  const { service } = started();
  service.model.preferences = { ...service.model.preferences, followNotebook: false };
  service.focus('b.ipynb');
  expect(service.model.chosen).toEqual(HERE);
});

test('a choice of an earlier visit stands as soon as its session is there', () => {
  const channel = new ChannelDouble();
  const service = new DjinnService(channel, '0.1.0');
  service.model.choose({ engine: 'e1', session: 'b' });
  expect(service.model.chosen).toBeNull();
  channel.tell(snapshot(0, [engine('e1', STOPPED, session('b'))]));
  expect(service.model.chosen?.session).toBe('b');
});

test('each verb asks its request of the session', async () => {
  const { channel, service } = started();
  await service.resume(HERE);
  await service.pause(HERE);
  await service.step(HERE, 'point');
  await service.back(HERE);
  await service.revert(HERE);
  await service.setBreakpoint(HERE, 'z.1');
  await service.enableBreakpoint(HERE, 3, false);
  await service.clearBreakpoints(HERE, [3]);
  await service.swap(HERE, 'out');
  await service.acceptRecomputed(HERE);
  await service.fork(HERE, 'b');
  await service.close(HERE);
  const stop = { session: 'a', number: 1, edition: 1 };
  expect(channel.asked.map(({ request }) => request)).toEqual([
    { request: 'Resume', session: 'a', free: false, stop },
    { request: 'Pause', session: 'a' },
    { request: 'Step', session: 'a', by: 'point', stop },
    { request: 'Back', session: 'a', by: 'stop', stop },
    { request: 'RevertEdits', session: 'a', stop },
    { request: 'SetBreakpoint', session: 'a', site: 'z.1', when: null, once: false },
    { request: 'EnableBreakpoint', session: 'a', number: 3, enabled: false },
    { request: 'ClearBreakpoints', session: 'a', sites: ['3'] },
    { request: 'SwapOut', session: 'a' },
    { request: 'AcceptRecomputed', session: 'a' },
    { request: 'Fork', session: 'a', name: 'b', stop },
    { request: 'Close', session: 'a', force: false }
  ]);
});

test('a move is for the stop that the person sees, edition and all', async () => {
  const { channel, service } = started();
  const stop = { session: 'a', number: 7, edition: 9 };
  channel.tell(snapshot(0, [engine('e1', session('a', { state: 'paused', stop }, 'a.ipynb'))]));
  await service.step(HERE);
  expect(channel.asked.at(-1)?.request).toMatchObject({ stop });
});

const accepted = (move: number) => () => ({ reply: 'Accepted', move });
const failed = (message: string): Partial<WireReply> => ({ reply: 'Failed', code: 'No', message });

/** The sentence about a subject of the session. */
function said(service: DjinnService, about: string): string | null {
  return refusalOf(service.model.refusals, { ...HERE, about });
}

test('a refusal stands under its own request until that request succeeds', async () => {
  const { channel, service } = started();
  channel.answer = () => refuse('The slab is full.');
  await service.swap(HERE, 'in');
  channel.answer = () => refuse('It is not running.');
  await service.pause(HERE);
  channel.answer = () => ({ reply: 'Closed' });
  await service.enableBreakpoint(HERE, 3, false);
  expect(said(service, 'swap')).toBe('The slab is full.');
  expect(said(service, 'move')).toBe('It is not running.');
  await service.pause(HERE);
  expect(said(service, 'move')).toBeNull();
  expect(said(service, 'swap')).toBe('The slab is full.');
  await service.swap(HERE, 'out');
  expect(service.model.refusals.size).toBe(0);
});

test('a move that was accepted has not succeeded before its outcome', async () => {
  const { channel, service } = started();
  channel.answer = () => refuse('It is not stopped.');
  await service.step(HERE);
  channel.answer = accepted(7);
  await service.step(HERE);
  expect(said(service, 'move')).toBe('It is not stopped.');
  channel.tell(outcome(1, { reply: 'Paused' }, 7));
  expect(said(service, 'move')).toBeNull();
});

test('a move that fails after it was accepted says so where it was asked', async () => {
  const { channel, service } = started();
  const to = { index: 0, number: 5 } as StopDescription;
  channel.answer = accepted(7);
  await service.backTo(HERE, to, 1, null);
  channel.tell(outcome(1, failed('No page is free.'), 7));
  expect(said(service, 'stop 5')).toBe('No page is free.');
  expect(said(service, 'move')).toBeNull();
});

test('so it does when the outcome comes before the reply', async () => {
  const { channel, service } = started();
  const to = { index: 0, number: 5 } as StopDescription;
  channel.answer = () => {
    channel.tell(outcome(1, failed('No page is free.'), 7));
    return { reply: 'Accepted', move: 7 };
  };
  await service.backTo(HERE, to, 1, null);
  expect([...service.model.refusals.values()].map(({ subject }) => subject.about)).toEqual([
    'stop 5'
  ]);
});

test('a move of another page that fails is told at the session, and refuses nothing of this page', async () => {
  const { channel, service } = started();
  let refuseLater: (error: Error) => void = () => undefined;
  channel.answer = () => new Promise((_, reject) => (refuseLater = reject));
  const asked = service.step(HERE);
  channel.tell(outcome(1, failed('No page is free.'), 3));
  expect(said(service, 'move')).toBe('No page is free.');
  refuseLater(new Error('The stop is another one.'));
  await asked;
  expect(said(service, 'move')).toBe('The stop is another one.');
});

test('of the same request asked twice the later answer counts', async () => {
  const { channel, service } = started();
  let refuseLater: (error: Error) => void = () => undefined;
  channel.answer = () => new Promise((_, reject) => (refuseLater = reject));
  const first = service.swap(HERE, 'out');
  channel.answer = () => ({ reply: 'Swapped' });
  await service.swap(HERE, 'out');
  refuseLater(new Error('It is moving.'));
  await first;
  expect(said(service, 'swap')).toBeNull();
});

test('an outcome that was missed is read from the snapshot', async () => {
  const { channel, service } = started();
  channel.answer = accepted(7);
  await service.step(HERE);
  const outcomes = [outcome(9, failed('No page is free.'), 7)];
  channel.tell(snapshot(0, [engine('e1', STOPPED)], { outcomes }));
  expect(said(service, 'move')).toBe('No page is free.');
});

test('with a session and an engine their refusals go', async () => {
  const { channel, service } = started();
  channel.answer = () => refuse('The slab is full.');
  await service.swap(HERE, 'in');
  service.model.refuse({ engine: 'e1', session: null, about: 'stop' }, 'Notebooks use it.');
  channel.tell(snapshot(0, [engine('e1', session('b'))]));
  expect([...service.model.refusals.values()].map(({ text }) => text)).toEqual([
    'Notebooks use it.'
  ]);
  channel.tell(snapshot(0, []));
  expect(service.model.refusals.size).toBe(0);
});

test('events are passed on', () => {
  const { channel, service } = started();
  const heard: IDjinn.IEventMessage[] = [];
  service.eventMessage.connect((_, event) => void heard.push(event));
  channel.tell({
    live: 'event',
    sequence: 1,
    engine: 'e1',
    event: { event: 'SessionRunning', session: 'a' }
  });
  expect(heard).toEqual([{ engine: 'e1', event: { event: 'SessionRunning', session: 'a' } }]);
});
