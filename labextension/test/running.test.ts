import { CommandIDs } from '../src/panels/names';
import { RunningEngines } from '../src/application/running';
import { DjinnService } from '../src/service/service';
import { ChannelDouble, engine, found, session, snapshot } from './double';

const trans = { __: (text: string) => text, _n: (one: string) => one };

function running(): { list: RunningEngines; executed: [string, unknown][] } {
  const channel = new ChannelDouble();
  const service = new DjinnService(channel, '0.1.0');
  const executed: [string, unknown][] = [];
  const execute = async (id: string, args?: unknown): Promise<void> =>
    void executed.push([id, args]);
  channel.tell(snapshot(0, [engine('e1', session('a'), session('b', {}, 'b.ipynb'))]));
  return { list: new RunningEngines(service, execute, trans), executed };
}

test('sessions are below their engine in a tree, after it in a list', () => {
  const { list } = running();
  const labels = (items: ReturnType<RunningEngines['running']>): unknown[] =>
    items.map(item => item.label());
  const [tree] = list.running({ mode: 'tree' });
  expect(tree.label()).toBe('demo');
  expect(labels([...(tree.children ?? [])])).toEqual(['a', 'b']);
  expect(labels(list.running({ mode: 'list' }))).toEqual(['demo', 'a', 'b']);
});

test('an engine is stopped and a session closed, by the commands that ask first', () => {
  const { list, executed } = running();
  const [demo, a] = list.running({ mode: 'list' });
  expect([demo, a].map(list.shutdownLabel)).toEqual(['Stop', 'Close']);
  demo.shutdown?.();
  a.shutdown?.();
  expect(executed).toEqual([
    [CommandIDs.stopEngine, { engine: 'e1' }],
    [CommandIDs.close, { engine: 'e1', session: 'a' }]
  ]);
});

test('a session with a notebook opens it', () => {
  const { list, executed } = running();
  list.running({ mode: 'list' })[2].open?.();
  expect(executed).toEqual([[CommandIDs.openNotebook, { engine: 'e1', session: 'b' }]]);
});

test('an engine of another machine is named by its place, and has no process here', () => {
  const channel = new ChannelDouble();
  const list = new RunningEngines(new DjinnService(channel, '0.1.0'), async () => {}, {
    __: (text: string, ...words: unknown[]) => [text, ...words].join(' '),
    _n: (one: string) => one
  });
  const afar = { ...engine('e1'), found: found('e1', { pid: null, host: 'gpu-box:5556' }) };
  channel.tell(snapshot(0, [afar, engine('e2')]));
  const titles = list.running({ mode: 'list' }).map(item => item.labelTitle?.());
  expect(titles).toEqual(['On %1 gpu-box:5556', 'Process %1 on %2 4242 here']);
});
