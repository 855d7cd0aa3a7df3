/** @jest-environment jsdom */

import { fireEvent } from '@testing-library/dom';

import { stopAtTokens } from '../src/application/texts';
import { DjinnService } from '../src/service/service';
import { LiveSession } from '../src/wire';
import { ChannelDouble, breakpoint, engine, session, snapshot } from './double';

const NAME = 'work/a "b" \\.ipynb';
const SITE = 'resid_post.7';

function shown(...sessions: LiveSession[]): { channel: ChannelDouble; service: DjinnService } {
  const channel = new ChannelDouble();
  const service = new DjinnService(channel, '0.1.0');
  channel.tell(snapshot(0, [engine('e1', ...sessions)]));
  document.body.innerHTML =
    '<div class="djinn"><div><span data-djinn-at="2">x</span><b>y</b></div></div>';
  const text = document.querySelector<HTMLElement>('.djinn > div')!;
  Object.assign(text.dataset, { djinnEngine: 'e1', djinnSession: NAME, djinnSite: SITE });
  return { channel, service };
}

const token = (): HTMLElement => document.querySelector('[data-djinn-at]')!;
const styles = (): string =>
  [...document.querySelectorAll('style')].map(one => one.textContent).join();

test('a click on a token sets a breakpoint at its position, and a second one removes it', () => {
  const { channel, service } = shown(session(NAME));
  const stopping = stopAtTokens(service);
  expect(getComputedStyle(token()).cursor).toBe('pointer');
  fireEvent.click(document.querySelector('b')!);
  expect(channel.asked).toEqual([]);
  fireEvent.click(token());
  const at = { session: NAME, site: SITE, when: 'position == 2', once: false };
  expect(channel.asked).toEqual([{ engine: 'e1', request: { request: 'SetBreakpoint', ...at } }]);
  const set = { ...breakpoint(3, SITE), when: 'position == 2' };
  channel.tell(
    snapshot(1, [engine('e1', session(NAME, { breakpoints: [breakpoint(1, SITE), set] }))])
  );
  expect(styles()).toContain('[data-djinn-at="2"]{outline');
  expect(document.querySelector(/(.*)\{outline/.exec(styles())![1])).toBe(token());
  fireEvent.click(token());
  expect(channel.asked[1].request).toEqual({
    request: 'ClearBreakpoints',
    session: NAME,
    sites: ['3']
  });
  stopping.dispose();
  expect(styles()).toBe('');
});

test('a text whose session is not there is only read', () => {
  const { channel, service } = shown(session('other'));
  const stopping = stopAtTokens(service);
  expect(getComputedStyle(token()).cursor).not.toBe('pointer');
  fireEvent.click(token());
  expect(channel.asked).toEqual([]);
  stopping.dispose();
  fireEvent.click(token());
  expect(channel.asked).toEqual([]);
});

test('the keyboard comes to a text, moves along its tokens and sets a breakpoint at one', () => {
  const { channel, service } = shown(session(NAME));
  const text = document.querySelector<HTMLElement>('.djinn > div')!;
  text.tabIndex = 0;
  text.innerHTML =
    '<code data-djinn-at="0">a</code><code data-djinn-at="1" title="p &lt;b&gt;">b</code>';
  const [first, second] = text.querySelectorAll('code');
  const stopping = stopAtTokens(service);
  text.focus();
  expect(document.activeElement).toBe(first);
  expect(text.tabIndex).toBe(-1); // so that Shift and Tab leave it
  const outside = jest.fn();
  document.addEventListener('keydown', outside, true);
  fireEvent.keyDown(first, { key: 'ArrowRight' });
  expect(document.activeElement).toBe(second);
  expect(document.querySelector('.djinn-Token-numbers')!.textContent).toBe('p <b>');
  expect(second.getAttribute('aria-label')).toBe('b, p <b>');
  for (const [key, at] of [
    ['End', second],
    ['ArrowRight', second],
    ['Home', first],
    ['ArrowLeft', first]
  ] as const) {
    fireEvent.keyDown(document.activeElement!, { key });
    expect(document.activeElement).toBe(at);
  }
  fireEvent.keyDown(first, { key: 'Enter' });
  fireEvent.keyDown(first, { key: ' ' });
  const at = { session: NAME, site: SITE, when: 'position == 0', once: false };
  expect(channel.asked.map(({ request }) => request)).toEqual([
    { request: 'SetBreakpoint', ...at },
    { request: 'SetBreakpoint', ...at }
  ]);
  expect(outside).not.toHaveBeenCalled();
  fireEvent.keyDown(first, { key: 'j' });
  fireEvent.keyDown(first, { key: 'Enter', ctrlKey: true });
  expect(outside).toHaveBeenCalledTimes(2);
  document.removeEventListener('keydown', outside, true);
  first.blur();
  expect(document.querySelector('.djinn-Token-numbers')).toBeNull();
  expect(text.tabIndex).toBe(0);
  stopping.dispose();
});
