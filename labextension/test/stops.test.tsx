/** @jest-environment jsdom */

import { fireEvent, screen, within } from '@testing-library/react';

import { Stops } from '../src/panels/stops';
import { WireRequest } from '../src/wire';
import { Branch } from '../src/wire';
import { refuse, session } from './double';
import { Drawn, drawn, settled } from './drawn';

const STOP = { position: 4, reason: 'breakpoint', edited: false } as const;
const A = { session: 'a', number: 12, edition: 12 };
const BRANCHES: readonly Branch[] = [
  {
    session: 'a',
    state: 'paused',
    stops: [
      { ...STOP, index: 0, site: 'resid_post.2', step: 0, number: 10 },
      { ...STOP, index: 1, site: 'resid_post.3', step: 1, number: 11 }
    ],
    present: 1,
    tokens: 6,
    text: 'The sun',
    forked_from: null,
    stop: A,
    dropped: 0
  },
  {
    session: 'b',
    state: 'running',
    stops: [{ ...STOP, index: 0, site: 'resid_post.2', step: 0, number: 10 }],
    present: null,
    tokens: 5,
    text: 'The',
    forked_from: { session: 'a', stop: 10, tokens: 5 },
    stop: null,
    dropped: 0
  }
];

async function tree(): Promise<Drawn> {
  const panel = drawn(Stops, (request: WireRequest) =>
    request.request === 'ReadTree' ? { branches: BRANCHES } : { reply: 'Accepted', move: 1 }
  );
  await panel.has(
    session('a', { state: 'paused', stop: A }),
    session('b', { state: 'running', stop: null })
  );
  return panel;
}

test('a stop says who stands there; a click says what going back does, and moves nothing', async () => {
  const { channel } = await tree();
  expect(screen.getByLabelText('resid_post.3, step 1, a stands here')).toBeTruthy();
  await settled(() => fireEvent.click(screen.getByLabelText('resid_post.2, prompt')));
  expect(screen.getByText('Takes a back 1 stop.')).toBeTruthy();
  expect(screen.getByText(/What came after is dropped/)).toBeTruthy();
  expect(screen.getByText('b runs: pause it to take it back.')).toBeTruthy();
  expect(channel.verbs).toEqual(['ReadTree']);
});

test('it goes back to the stop as many as it said, from where the tree saw the session stand', async () => {
  const { channel, service } = await tree();
  await settled(() => service.model.choose({ engine: 'e1', session: 'b' }));
  await settled(() => fireEvent.click(screen.getByLabelText('resid_post.2, prompt')));
  await settled(() => fireEvent.click(screen.getByText('Take a back')));
  const asked = { request: 'Back', session: 'a', count: 1, by: 'stop', stop: A };
  expect(channel.asked.map(({ request }) => request)).toContainEqual(asked);
  expect(service.model.chosen?.session).toBe('a');
});

test('a way back that was refused says so at its stop, which is folded by then', async () => {
  const { channel } = await tree();
  await settled(() => fireEvent.click(screen.getByLabelText('resid_post.2, prompt')));
  channel.answer = () => refuse('Its stop is another one by now.');
  await settled(() => fireEvent.click(screen.getByText('Take a back')));
  const row = screen.getByLabelText('resid_post.2, prompt').closest('li')!;
  expect(within(row).getByRole('alert').textContent).toBe('Its stop is another one by now.');
  expect(screen.getAllByRole('alert')).toHaveLength(1);
});

test('where a session stands it is shown', async () => {
  const { channel, service } = await tree();
  await settled(() => fireEvent.click(screen.getByLabelText('Show session b')));
  expect(service.model.chosen?.session).toBe('b');
  await settled(() => fireEvent.click(screen.getByLabelText(/resid_post\.3, step 1/)));
  await settled(() => fireEvent.click(screen.getByText('Show a')));
  expect(service.model.chosen?.session).toBe('a');
  expect(channel.verbs).toEqual(['ReadTree']);
});

test('it is read again when a session of the engine stands otherwise', async () => {
  const { channel, has } = await tree();
  await has(
    session('a', { state: 'paused', stop: A }),
    session('b', { state: 'paused', stop: { session: 'b', number: 20, edition: 20 } })
  );
  expect(channel.verbs).toEqual(['ReadTree', 'ReadTree']);
});
