/** @jest-environment jsdom */

import { act, fireEvent, screen } from '@testing-library/react';
import * as React from 'react';

import { Sessions } from '../src/panels/sessions';
import { DjinnService } from '../src/service/service';
import { UNDO_SECONDS } from '../src/models/closing';
import { LiveSession, SessionDescription } from '../src/wire';
import { ChannelDouble, engine, refuse, session, snapshot } from './double';
import { chance } from './chance';
import { Drawn, drawn, settled } from './drawn';

const MS = 1000 * UNDO_SECONDS;

function left(name: string, more: Partial<SessionDescription> = {}): LiveSession {
  return { ...session(name, more), closed: true };
}

function bench(): {
  channel: ChannelDouble;
  service: DjinnService;
  has: (...all: LiveSession[]) => void;
} {
  const channel = new ChannelDouble();
  const service = new DjinnService(channel, '0.1.0');
  const has = (...all: LiveSession[]): void => channel.tell(snapshot(0, [engine('e1', ...all)]));
  return { channel, service, has };
}

function closed(channel: ChannelDouble): [string, boolean | undefined][] {
  return channel.asked.flatMap(({ request }) =>
    request.request === 'Close' ? [[request.session, request.force]] : []
  );
}

function panel(): Drawn {
  return drawn(props => <Sessions {...props} execute={async () => undefined} />);
}

beforeEach(() =>
  jest.useFakeTimers({ doNotFake: ['requestAnimationFrame', 'cancelAnimationFrame'] })
);
afterEach(() => jest.useRealTimers());

test('swept sessions are closed when the time for undo is over, and not before', async () => {
  const { channel, service, has } = bench();
  has(left('a'), session('b'), left('c', { notebook: '/notes/c.ipynb' }));
  service.closeLeft('e1');
  await jest.advanceTimersByTimeAsync(MS - 1);
  expect(closed(channel)).toEqual([]);
  await jest.advanceTimersByTimeAsync(1);
  // One that is kept for a notebook is refused without force.
  expect(closed(channel)).toEqual([
    ['a', false],
    ['c', true]
  ]);
  expect(service.model.closingOf('e1')).toBeUndefined();
});

test('an undone closing has closed nothing, and the sessions are in the list again', async () => {
  const { channel, service, has } = bench();
  has(left('a'));
  service.closeLeft('e1');
  expect(service.model.aside('e1')).toHaveLength(1);
  service.undoClosing('e1');
  expect(service.model.aside('e1')).toEqual([]);
  await jest.advanceTimersByTimeAsync(2 * MS);
  expect(channel.asked).toEqual([]);
});

test('one that someone opens or uses meanwhile stays', async () => {
  const { channel, service, has } = bench();
  has(left('a'), left('b'), left('c'));
  service.closeLeft('e1');
  has(left('a', { tokens: 9 }), session('b'), left('c'));
  expect(service.model.aside('e1').map(({ place }) => place.session)).toEqual(['c']);
  await jest.advanceTimersByTimeAsync(MS);
  expect(closed(channel)).toEqual([['c', false]]);
});

test('one that is refused stays, and the others are closed', async () => {
  const { channel, service, has } = bench();
  has(left('a'), left('b'));
  channel.answer = request =>
    request.request === 'Close' && request.session === 'a'
      ? refuse('It is open.')
      : { reply: 'Closed' };
  service.closeLeft('e1');
  await jest.advanceTimersByTimeAsync(MS);
  expect(closed(channel)).toHaveLength(2);
  expect(service.model.closingOf('e1')).toBeUndefined();
});

test('a page that is closed closes no session', async () => {
  const { channel, service, has } = bench();
  has(left('a'));
  service.closeLeft('e1');
  service.dispose();
  await jest.advanceTimersByTimeAsync(2 * MS);
  expect(channel.asked).toEqual([]);
});

test('whatever happens, only sessions are closed that were swept, lay untouched, and were not undone', async () => {
  for (let round = 0; round < 40; round += 1) {
    const draw = chance(round);
    const { channel, service, has } = bench();
    let all = ['a', 'b', 'c', 'd'].map(name => ({ name, tokens: 1, closed: true }));
    const show = (): void =>
      has(
        ...all.map(one => ({ ...session(one.name, { tokens: one.tokens }), closed: one.closed }))
      );
    let swept = new Map<string, number>();
    let due = Infinity;
    let now = 0;
    const expected: string[] = [];
    show();
    for (let step = 0; step < 12; step += 1) {
      const one = all[draw(all.length)];
      switch (draw(5)) {
        case 0:
          service.closeLeft('e1');
          swept = new Map(
            all.filter(({ closed }) => closed).map(({ name, tokens }) => [name, tokens])
          );
          due = now + MS;
          break;
        case 1:
          service.undoClosing('e1');
          due = Infinity;
          break;
        case 2:
          one.tokens += 1;
          show();
          break;
        case 3:
          one.closed = !one.closed;
          show();
          break;
        case 4: {
          const wait = draw(MS);
          await jest.advanceTimersByTimeAsync(wait);
          now += wait;
          if (now >= due) {
            expected.push(
              ...all
                .filter(one => one.closed && swept.get(one.name) === one.tokens)
                .map(({ name }) => name)
            );
            due = Infinity;
          }
        }
      }
    }
    expect(closed(channel).map(([name]) => name)).toEqual(expected);
    service.dispose();
  }
});

test('sessions of closed notebooks are dimmed and say so, and one button sweeps them with undo', async () => {
  jest.useRealTimers();
  const { has, channel } = panel();
  await has(left('old'), left('older'), session('mine'));
  const row = (name: string): Element =>
    screen.getByRole('button', { name: new RegExp(`^Session ${name},`) }).closest('li')!;
  expect(row('old').classList.contains('djinn-mod-closed')).toBe(true);
  expect(row('old').textContent).toContain('notebook closed');
  expect(row('mine').classList.contains('djinn-mod-closed')).toBe(false);
  const closing = screen.getByRole('button', { name: 'Close 2 sessions of closed notebooks' });
  await settled(() => fireEvent.click(closing));
  expect(screen.queryByText('old')).toBeNull();
  expect(
    screen.getByText(/^2 sessions of closed notebooks are closed at \d\d:\d\d:\d\d\.$/)
  ).toBeTruthy();
  await settled(() => fireEvent.click(screen.getByRole('button', { name: 'Undo' })));
  expect(screen.getByText('old')).toBeTruthy();
  expect(closed(channel)).toEqual([]);
  await act(async () => undefined);
});

test('where no notebook is closed there is nothing to closing', async () => {
  jest.useRealTimers();
  await panel().has(session('mine'));
  expect(screen.queryByRole('button', { name: /closed notebook/ })).toBeNull();
});
