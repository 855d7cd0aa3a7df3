/** @jest-environment jsdom */

import { JupyterFrontEnd } from '@jupyterlab/application';

import { refusalOf } from '../src/models/refusals';
import { CommandIDs } from '../src/panels/names';
import { RequestRefused } from '../src/service/channel';
import { DjinnService } from '../src/service/service';
import { LiveSession, WireRequest } from '../src/wire';
import { ChannelDouble, engine, refuse, session, snapshot } from './double';
import { trans } from './drawn';
import { Lab, PACKAGES } from './lab';

const HERE = { engine: 'e1', session: 'a' };
const SAID = "Session 'a' is open in the notebook work/rome.ipynb; to close it all the same, ...";

/** A page whose person answers the dialogs as told, in their order; `dialogs` are their texts. */
function page(answer: (request: WireRequest) => unknown, ...accepted: boolean[]) {
  return pageOf(session('a', {}, 'a.ipynb'), answer, ...accepted);
}

function pageOf(
  shown: LiveSession,
  answer: (request: WireRequest) => unknown,
  ...accepted: boolean[]
) {
  const dialogs: string[] = [];
  const button = (): object => ({});
  for (const [name, made] of Object.entries(PACKAGES)) {
    jest.doMock(name, made);
  }
  jest.doMock('@jupyterlab/apputils', () => ({
    Dialog: { cancelButton: button, warnButton: button },
    showDialog: async ({ body }: { body: string }) => {
      dialogs.push(body);
      return { button: { accept: accepted.shift() } };
    }
  }));
  const { addCommands } = jest.requireActual<typeof import('../src/application/commands')>(
    '../src/application/commands'
  );
  const channel = new ChannelDouble();
  channel.answer = answer;
  const service = new DjinnService(channel, '0.1.0');
  channel.tell(snapshot(0, [engine('e1', shown)]));
  service.focus('b.ipynb');
  const lab = new Lab();
  addCommands(lab as unknown as JupyterFrontEnd, service, trans as never, 'sidebar');
  const close = (): Promise<unknown> => lab.commands.execute(CommandIDs.close, HERE);
  const forced = (): unknown[] =>
    channel.asked.map(({ request }) => request.request === 'Close' && request.force);
  return { channel, service, close, dialogs, forced };
}

function suffers(request: WireRequest): unknown {
  if (request.request === 'Close' && !request.force) {
    throw new RequestRefused({ code: 'SessionsWouldSuffer', message: SAID });
  }
  return { reply: 'Closed' };
}

beforeEach(() => jest.resetModules());

test('the session of another notebook is closed when the person insists', async () => {
  const { channel, close, dialogs, forced } = page(suffers, true, true);
  await close();
  expect(dialogs.at(-1)).toBe(SAID);
  expect(forced()).toEqual([false, true]);
  expect(channel.besides).toEqual(['b.ipynb', 'b.ipynb']);
});

test('it stays when the person does not, and nothing is said to be wrong', async () => {
  const { service, close, forced } = page(suffers, true, false);
  await close();
  expect(forced()).toEqual([false]);
  expect(refusalOf(service.model.refusals, { ...HERE, about: 'close' })).toBeNull();
});

test('one that may be closed is closed after one question', async () => {
  const { close, dialogs, forced } = page(() => ({ reply: 'Closed' }), true);
  await close();
  expect([dialogs.length, forced()]).toEqual([1, [false]]);
});

test.each([
  ['sweeping', 'cells', 'It is sweeping, 4 of 9 cells. The cells that are finished are kept.'],
  [
    'collecting',
    'prompts',
    'It is collecting, 4 of 9 prompts. Shards that are whole stay in its folder.'
  ],
  [
    'computing losses',
    'prompts',
    'It is computing losses, 4 of 9 prompts. What it has found so far is lost.'
  ]
] as const)('who ends %s is told what is kept', async (doing, counted, said) => {
  const shown = session('a', { progress: { doing, done: 4, total: 9, counted } }, 'a.ipynb');
  const { close, dialogs, forced } = pageOf(shown, () => ({ reply: 'Closed' }), true);
  await close();
  expect([dialogs, forced()]).toEqual([[said], [false]]);
});

test('another refusal stands beside the session', async () => {
  const { service, close } = page(() => refuse('No.'), true);
  await close();
  expect(refusalOf(service.model.refusals, { ...HERE, about: 'close' })).toBe('No.');
});

test('a service that ends while requests are under way is told nothing more, and nothing is thrown', async () => {
  const waiting: ((answer: unknown) => void)[] = [];
  const { service } = page(() => new Promise(resolve => waiting.push(resolve)));
  let told = 0;
  service.model.stateChanged.connect(() => (told += 1));
  const asked = [service.resume(HERE), service.swap(HERE, 'in'), service.fork(HERE, 'twin')];
  await Promise.resolve();
  expect(waiting).toHaveLength(3);
  service.dispose();
  waiting[0]({ reply: 'Accepted', move: 1 });
  waiting[1](Promise.reject(new Error('The connection was closed.')));
  waiting[2]({ reply: 'Opened' });
  await Promise.all(asked);
  expect(told).toBe(0);
  expect(service.model.refusals.size).toBe(0);
});
