/** @jest-environment jsdom */

import { Token } from '@lumino/coreutils';
import { IObservableDisposable } from '@lumino/disposable';
import { Signal } from '@lumino/signaling';
import { act, fireEvent } from '@testing-library/react';

import { engine, session, snapshot } from './double';
import { settled } from './drawn';
import { Lab, PACKAGES, Socket } from './lab';

interface IPlugin {
  readonly provides?: Token<unknown>;
  readonly requires?: readonly Token<unknown>[];
  readonly optional?: readonly Token<unknown>[];
  readonly activate: (app: Lab, ...services: unknown[]) => unknown;
}

type Listen = (type: string, listener: unknown, options?: unknown) => void;

/** Listeners that React and jsdom keep for the whole page. */
const OF_THE_PAGE = /^selectionchange|Snapshot\.HOVER/;

/** All that was subscribed to, and not yet given up. */
class Subscriptions {
  constructor() {
    this._signals();
    this._events(document);
    this._events(window);
    this._events(document.body);
    this._timers();
    for (const name of ['IntersectionObserver', 'ResizeObserver', 'MutationObserver'] as const) {
      this._observer(name);
    }
  }

  /** Signals say whether a slot was still connected when it is disconnected. */
  left(): string[] {
    const slots = this._connected.filter(({ disconnect }) => disconnect()).map(({ name }) => name);
    return [...slots, ...this._others.values()];
  }

  get count(): number {
    return this._connected.length + this._others.size;
  }

  private _signals(): void {
    const { connect } = Signal.prototype;
    const connected = this._connected;
    jest.spyOn(Signal.prototype, 'connect').mockImplementation(function (
      this: Signal<unknown, unknown>,
      slot,
      thisArg
    ) {
      const name = `signal of ${(this.sender as object).constructor.name}: ${slot}`;
      connected.push({ name, disconnect: () => this.disconnect(slot, thisArg) });
      return connect.call(this, slot, thisArg);
    });
  }

  private _events(target: EventTarget): void {
    const key = (type: string, listener: unknown): string => `${type}: ${listener}`;
    const { addEventListener, removeEventListener } = target;
    const add: Listen = (type, listener, options) => {
      if (!OF_THE_PAGE.test(`${type} ${listener}`)) {
        this._others.set(listener, key(type, listener));
      }
      addEventListener.call(target, type, listener as EventListener, options as boolean);
    };
    const remove: Listen = (type, listener, options) => {
      this._others.delete(listener);
      removeEventListener.call(target, type, listener as EventListener, options as boolean);
    };
    Object.assign(target, { addEventListener: add, removeEventListener: remove });
  }

  private _timers(): void {
    const { setInterval, clearInterval } = window;
    Object.assign(window, {
      setInterval: (act: () => void, wait: number) => {
        const timer = setInterval.call(window, act, wait);
        this._others.set(timer, `every ${wait} ms: ${act}`);
        return timer;
      },
      clearInterval: (timer: number) => {
        this._others.delete(timer);
        clearInterval.call(window, timer);
      }
    });
  }

  private _observer(name: string): void {
    const others = this._others;
    class Observer {
      constructor(private readonly _tell: (entries: object[]) => void) {}
      observe(): void {
        others.set(this, name);
        this._tell(name === 'MutationObserver' ? [] : [{ isIntersecting: true }]);
      }
      disconnect(): void {
        others.delete(this);
      }
    }
    Object.assign(window, { [name]: Observer });
  }

  private readonly _connected: { readonly name: string; readonly disconnect: () => boolean }[] = [];
  private readonly _others = new Map<unknown, string>();
}

async function activated(lab: Lab): Promise<IObservableDisposable> {
  for (const [name, made] of Object.entries(PACKAGES)) {
    jest.doMock(name, made);
  }
  const { default: plugins } = jest.requireActual<{ default: IPlugin[] }>('../src/index');
  const of = ({ name }: Token<unknown>): unknown => lab.services[name];
  for (const plugin of plugins) {
    const needed = [...(plugin.requires ?? []), ...(plugin.optional ?? [])];
    const service = await plugin.activate(lab, ...needed.map(of));
    if (plugin.provides) {
      lab.services[plugin.provides.name] = service;
    }
  }
  return lab.services['djinn-jupyter:IDjinn'] as IObservableDisposable;
}

test('what ends with the service: every listener, timer, observer, command and item of a list', async () => {
  Object.assign(window, { WebSocket: Socket });
  const lab = new Lab();
  const subscriptions = new Subscriptions();
  const service = await act(() => activated(lab));
  const stopped = session('a', { state: 'paused', stopped_at: 'z.1' }, 'a.ipynb');
  await settled(() => Socket.last.onopen?.());
  await settled(() =>
    Socket.last.onmessage?.({ data: JSON.stringify(snapshot(0, [engine('e1', stopped)])) })
  );
  expect(document.body.textContent).toContain('at z.1');
  const row = document.querySelector('.djinn-Session')!;
  fireEvent(row, new MouseEvent('pointerdown', { button: 0, bubbles: true }));
  expect(subscriptions.count).toBeGreaterThan(20);
  expect(lab.commands.listCommands().length).toBeGreaterThan(10);
  await settled(() => service.dispose());
  expect(subscriptions.left()).toEqual([]);
  expect([...lab.added]).toEqual([]);
  expect(lab.commands.listCommands()).toEqual([]);
  expect(document.body.textContent).toBe('');
  expect(Socket.last).toMatchObject({ onopen: null, onmessage: null, onclose: null });
});
