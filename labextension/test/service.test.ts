import { DjinnService, IHeardEvent } from '../src/service';
import { LiveOutcome, LiveSession, WireReply } from '../src/wire';
import { LineDouble, engine, refuse, session, snapshot } from './double';

const HERE = { engine: 'e1', session: 'a' };
const STOPPED = session('a', { state: 'paused', stopped_at: 'attn_in.1' }, 'a.ipynb');

function started(): { line: LineDouble; service: DjinnService } {
  const line = new LineDouble();
  const service = new DjinnService(line, '0.1.0');
  line.tell(snapshot(0, [engine('e1', STOPPED, session('b', {}, 'b.ipynb'))]));
  return { line, service };
}

function outcome(sequence: number, reply: Partial<WireReply>, move = 1): LiveOutcome {
  return { live: 'outcome', sequence, ...HERE, request: 'Step', move, reply: reply as WireReply };
}

test('it connects at once and shows the stopped session of a snapshot', () => {
  const { line, service } = started();
  expect(line.connects).toBe(1);
  expect(service.model.chosen).toEqual(HERE);
  expect(service.model.stopped).toBe(true);
});

test('a missed message is answered with resync and changes nothing', () => {
  const { line, service } = started();
  const before = service.model.live;
  line.tell(outcome(5, { reply: 'Paused' }));
  expect(service.model.live).toBe(before);
  expect(line.said.at(-1)).toEqual({ say: 'resync' });
});

test('the notebook in front is told once, and again after each snapshot', () => {
  const { line, service } = started();
  service.focus('b.ipynb');
  service.focus('b.ipynb');
  const focused = { say: 'focus', notebook: 'b.ipynb' };
  expect(line.said.slice(1)).toEqual([focused]);
  expect(service.model.chosen).toEqual({ engine: 'e1', session: 'b' });
  line.tell(snapshot(0, []));
  expect(line.said.slice(2)).toEqual([focused]);
});

test('beside a notebook that has no session a person\u2019s pick is not moved any more', () => {
  const { service } = started();
  service.model.choose({ engine: 'e1', session: 'b' });
  service.focus('c.ipynb');
  expect(service.model.chosen).toBeNull();
  expect(service.model.stopped).toBe(false);
});

test('a notebook that is renamed keeps its session, and what it left behind is known', () => {
  const { line, service } = started();
  const held = (name: string, path: string): LiveSession => ({
    ...session(name, {}, path),
    kernel: { id: 'k', state: 'idle' }
  });
  line.tell(snapshot(0, [engine('e1', held('/w/a.ipynb', 'a.ipynb'))]));
  service.focus('a.ipynb');
  service.renamed('z.ipynb');
  expect(line.said.at(-1)).toEqual({ say: 'focus', notebook: 'z.ipynb' });
  expect(service.model.chosen?.session).toBe('/w/a.ipynb');
  const orphan = session('/w/a.ipynb', { tokens: 9 }, 'a.ipynb');
  line.tell(snapshot(0, [engine('e1', orphan, held('/w/z.ipynb', 'z.ipynb'))]));
  expect(service.model.chosen?.session).toBe('/w/z.ipynb');
  expect(service.model.left?.session).toBe('/w/a.ipynb');
});

test('a session that the notebook in front opens later is shown, whatever was shown before', () => {
  const { line, service } = started();
  service.focus('c.ipynb');
  line.tell(snapshot(0, [engine('e1', STOPPED, session('c', {}, 'c.ipynb'))]));
  expect(service.model.chosen?.session).toBe('c');
  service.model.choose(HERE);
  line.tell(snapshot(0, [engine('e1', STOPPED, session('c', { tokens: 9 }, 'c.ipynb'))]));
  expect(service.model.chosen).toEqual(HERE);
});

test('it stays with the chosen session where a person wants no following', () => {
  const { service } = started();
  service.model.preferences = { ...service.model.preferences, followNotebook: false };
  service.focus('b.ipynb');
  expect(service.model.chosen).toEqual(HERE);
});

test('a choice of an earlier visit stands as soon as its session is there', () => {
  const line = new LineDouble();
  const service = new DjinnService(line, '0.1.0');
  service.model.choose({ engine: 'e1', session: 'b' });
  expect(service.model.chosen).toBeNull();
  line.tell(snapshot(0, [engine('e1', STOPPED, session('b'))]));
  expect(service.model.chosen?.session).toBe('b');
});

test('each verb asks its request of the session', async () => {
  const { line, service } = started();
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
  await service.close(HERE);
  const stop = { session: 'a', number: 1, edition: 1 };
  expect(line.asked.map(({ request }) => request)).toEqual([
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
    { request: 'Close', session: 'a' }
  ]);
});

test('a move is for the stop that the person sees, edition and all', async () => {
  const { line, service } = started();
  const stop = { session: 'a', number: 7, edition: 9 };
  line.tell(snapshot(0, [engine('e1', session('a', { state: 'paused', stop }, 'a.ipynb'))]));
  await service.step(HERE);
  expect(line.asked.at(-1)?.request).toMatchObject({ stop });
});

test('a refusal becomes a remark, and the next verb takes it away', async () => {
  const { line, service } = started();
  line.answer = () => refuse('It is not stopped.');
  await service.resume(HERE);
  expect(service.model.remark).toEqual({ place: HERE, text: 'It is not stopped.' });
  line.answer = () => ({ reply: 'Accepted', move: 2 });
  await service.resume(HERE);
  expect(service.model.remark).toBeNull();
});

test('a move that fails after it was accepted says so too', () => {
  const { line, service } = started();
  line.tell(outcome(1, { reply: 'Failed', code: 'SlabFull', message: 'No page is free.' }));
  expect(service.model.remark?.text).toBe('No page is free.');
});

test('events are passed on', () => {
  const { line, service } = started();
  const heard: IHeardEvent[] = [];
  service.happened.connect((_, event) => void heard.push(event));
  line.tell({
    live: 'event',
    sequence: 1,
    engine: 'e1',
    event: { event: 'SessionRunning', session: 'a' }
  });
  expect(heard).toEqual([{ engine: 'e1', event: { event: 'SessionRunning', session: 'a' } }]);
});
