import { IStateDB } from '@jupyterlab/statedb';
import { Signal } from '@lumino/signaling';

import { PageState, readKept } from '../src/application/state';
import { DjinnService } from '../src/service/service';
import { ISidebar } from '../src/tokens';
import { ChannelDouble, engine, session, snapshot } from './double';

const turn = (): Promise<void> => new Promise(resolve => setTimeout(resolve));

function page(states: Pick<IStateDB, 'fetch' | 'save'>) {
  const channel = new ChannelDouble();
  const service = new DjinnService(channel, '0.1.0');
  channel.tell(snapshot(0, [engine('e1', session('a'), session('b'))]));
  const sidebar = { folded: [] as readonly string[] };
  const foldedChanged = new Signal<typeof sidebar, void>(sidebar);
  const state = new PageState(
    service,
    { ...sidebar, foldedChanged } as unknown as ISidebar,
    states as IStateDB
  );
  return { service, state };
}

afterEach(() => jest.restoreAllMocks());

test('a page whose state can neither be read nor saved begins as the first one did', async () => {
  const warned = jest.spyOn(console, 'warn').mockImplementation();
  const refused = async (): Promise<never> => {
    throw new Error('The workspace is gone.');
  };
  const { service, state } = page({ fetch: refused, save: refused });
  await state.restore();
  await turn();
  expect(warned).toHaveBeenCalledTimes(2); // for what was not read, and for what was not saved
  service.model.choose({ engine: 'e1', session: 'b' });
  await turn();
  expect(warned).toHaveBeenCalledTimes(3);
});

test('what was chosen is saved and comes back', async () => {
  let kept: unknown;
  const states = {
    fetch: async () => kept as never,
    save: async (_: string, value: unknown) => {
      kept = value;
    }
  };
  const before = page(states);
  await before.state.restore();
  before.service.model.choose({ engine: 'e1', session: 'b' });
  expect(readKept(kept).chosen).toEqual({ engine: 'e1', session: 'b' });
  const after = page(states);
  expect(after.service.model.chosen).not.toEqual({ engine: 'e1', session: 'b' });
  await after.state.restore();
  expect(after.service.model.chosen).toEqual({ engine: 'e1', session: 'b' });
});
