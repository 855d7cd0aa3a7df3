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
