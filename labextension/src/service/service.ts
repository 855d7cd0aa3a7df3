/* The verbs of the sidebar: sends requests over the channel and keeps the model. Knows neither sockets nor widgets. */

import { ISignal, Signal } from '@lumino/signaling';

import { stopAt } from '../models/graph';
import { NOTHING, Place, find, follows, isDown, reduce } from '../models/live';
import { DjinnModel } from '../models/model';
import { aboutStop } from '../models/refusals';
import { UNDO_SECONDS, begin } from '../models/closing';
import { IDjinn } from '../tokens';
import {
  AddedModuleDescription,
  Answers,
  BreakpointDescription,
  Edit,
  Live,
  ModuleDescription,
  StopDescription,
  StopIdentity
} from '../wire';
import { Attempts } from './attempts';
import { IChannel } from './channel';

export class DjinnService implements IDjinn {
  constructor(channel: IChannel, version: string) {
    this.version = version;
    this._channel = channel;
    channel.messageReceived.connect(this._onMessage, this);
    channel.connectionStatusChanged.connect(this._onConnection, this);
    channel.connect();
  }

  readonly model = new DjinnModel();
  readonly version: string;

  get eventMessage(): ISignal<this, IDjinn.IEventMessage> {
    return this._eventMessage;
  }

  get disposed(): ISignal<this, void> {
    return this._disposed;
  }

  get isDisposed(): boolean {
    return this._isDisposed;
  }

  /** Disconnect from the server, and notify the subscribers of the end. */
  dispose(): void {
    if (this._isDisposed) {
      return;
    }
    this._isDisposed = true;
    this._timers.forEach(timer => clearTimeout(timer));
    this._disposed.emit();
    this._channel.dispose();
    this.model.dispose();
    Signal.clearData(this);
  }

  reconnect(): void {
    this._channel.connect();
  }

  focus(notebook: string | null): void {
    if (notebook !== this.model.notebook) {
      this.model.notebook = notebook;
      this._channel.send({ say: 'focus', notebook });
    }
  }

  renamed(notebook: string): void {
    if (notebook !== this.model.notebook) {
      this.model.rename(notebook);
      this._channel.send({ say: 'focus', notebook });
    }
  }

  sendRequest<K extends keyof Answers>(
    engine: string,
    request: IDjinn.RequestOf<K>
  ): Promise<Answers[K]> {
    return this._channel.sendRequest<K>(engine, request, this.model.notebook);
  }

  modules(engine: string): Promise<readonly ModuleDescription[]> {
    const known = this._modules.get(engine);
    const asked =
      known ??
      this.sendRequest<'ListModules'>(engine, { request: 'ListModules' }).then(
        ({ modules }) => modules
      );
    this._modules.set(engine, asked);
    asked.catch(() => this._modules.delete(engine));
    return asked;
  }

  async addedModules(engine: string): Promise<readonly AddedModuleDescription[]> {
    const request = { request: 'ListAddedModules' } as const;
    return (await this.sendRequest<'ListAddedModules'>(engine, request)).modules;
  }

  resume(place: Place, free = false): Promise<void> {
    const { session } = place;
    const stop = this._seen(place);
    return this._attempts.move<'Resume'>(place, 'move', { request: 'Resume', session, free, stop });
  }

  pause(place: Place): Promise<void> {
    const { session } = place;
    return this._attempts.attempt<'Pause'>(place, 'move', { request: 'Pause', session });
  }

  step(place: Place, by: 'layer' | 'token' | 'point' = 'layer'): Promise<void> {
    const { session } = place;
    const stop = this._seen(place);
    return this._attempts.move<'Step'>(place, 'move', { request: 'Step', session, by, stop });
  }

  back(place: Place, by: 'stop' | 'layer' | 'token' = 'stop'): Promise<void> {
    const { session } = place;
    const stop = this._seen(place);
    return this._attempts.move<'Back'>(place, 'move', { request: 'Back', session, by, stop });
  }

  backTo(
    place: Place,
    to: StopDescription,
    count: number,
    stop: StopIdentity | null
  ): Promise<void> {
    const { session } = place;
    const request = { request: 'Back', session, count, by: 'stop', stop } as const;
    return this._attempts.move<'Back'>(place, aboutStop(to), request, () =>
      this.model.choose(place)
    );
  }

  fork(place: Place, name: string): Promise<void> {
    const { engine, session } = place;
    const stop = this._seen(place);
    const request = { request: 'Fork', session, name, stop } as const;
    const show = (): void => this.model.choose({ engine, session: name });
    return this._attempts.attempt<'Fork'>(place, 'fork', request, show);
  }

  async close({ engine, session }: Place, force = false): Promise<void> {
    await this.sendRequest<'Close'>(engine, { request: 'Close', session, force });
  }

  closeLeft(engine: string): void {
    this.undoClosing(engine);
    this.model.setAside(engine, begin(this.model.live, engine, Date.now() / 1000));
    this._timers.set(
      engine,
      setTimeout(() => void this._closeDue(engine), 1000 * UNDO_SECONDS)
    );
  }

  undoClosing(engine: string): void {
    clearTimeout(this._timers.get(engine));
    this._timers.delete(engine);
    this.model.setAside(engine);
  }

  /** A refusal says that someone has opened the session just now: it stays. */
  private async _closeDue(engine: string): Promise<void> {
    const due = isDown(this.model.live.engines[engine]) ? [] : this.model.aside(engine);
    const closed = due.map(({ place, session }) =>
      this.close(place, session.described.notebook !== null)
    );
    await Promise.allSettled(closed);
    if (!this._isDisposed) {
      this.undoClosing(engine);
    }
  }

  setBreakpoint(place: Place, site: string, when: string | null = null): Promise<void> {
    const { session } = place;
    return this._attempts.attempt<'SetBreakpoint'>(
      place,
      `breakpoint at ${stopAt({ site, when })}`,
      {
        request: 'SetBreakpoint',
        session,
        site,
        when,
        once: false
      }
    );
  }

  async addBreakpoint(place: Place, wanted: IDjinn.Wanted): Promise<BreakpointDescription> {
    const { engine, session } = place;
    const { breakpoint } = await this.sendRequest<'SetBreakpoint'>(engine, {
      request: 'SetBreakpoint',
      session,
      ...wanted
    });
    return breakpoint;
  }

  async changeBreakpoint(
    place: Place,
    before: BreakpointDescription,
    wanted: IDjinn.Wanted
  ): Promise<void> {
    const { engine, session } = place;
    const { number } = await this.addBreakpoint(place, wanted);
    if (!before.enabled) {
      await this.sendRequest<'EnableBreakpoint'>(engine, {
        request: 'EnableBreakpoint',
        session,
        number,
        enabled: false
      });
    }
    if (number !== before.number) {
      await this.sendRequest<'ClearBreakpoints'>(engine, {
        request: 'ClearBreakpoints',
        session,
        sites: [String(before.number)]
      });
    }
  }

  enableBreakpoint(place: Place, number: number, enabled: boolean): Promise<void> {
    const { session } = place;
    const request = { request: 'EnableBreakpoint', session, number, enabled } as const;
    return this._attempts.attempt<'EnableBreakpoint'>(place, `breakpoint ${number}`, request);
  }

  clearBreakpoints(
    place: Place,
    numbers: readonly number[] | null,
    about = 'breakpoints'
  ): Promise<void> {
    const { session } = place;
    const sites = numbers?.map(String) ?? null;
    const request = { request: 'ClearBreakpoints', session, sites } as const;
    return this._attempts.attempt<'ClearBreakpoints'>(place, about, request);
  }

  unsteer(place: Place, number: number): Promise<void> {
    const { session } = place;
    return this._attempts.attempt<'Unsteer'>(place, `rule ${number}`, {
      request: 'Unsteer',
      session,
      number
    });
  }

  enableRule(place: Place, number: number, enabled: boolean): Promise<void> {
    const { session } = place;
    const request = { request: 'EnableRule', session, number, enabled } as const;
    return this._attempts.attempt<'EnableRule'>(place, `rule ${number}`, request);
  }

  edit(place: Place, site: string, edit: Edit): Promise<void> {
    const { session } = place;
    const stop = this._seen(place);
    const request = { request: 'ApplyEdit', session, edit, site, stop } as const;
    return this._attempts.attempt<'ApplyEdit'>(place, `edit of ${site}`, request);
  }

  enableEdit(place: Place, number: number, enabled: boolean): Promise<void> {
    const { session } = place;
    const stop = this._seen(place);
    const request = { request: 'EnableEdit', session, number, enabled, stop } as const;
    return this._attempts.attempt<'EnableEdit'>(place, `edit ${number}`, request);
  }

  revert(place: Place): Promise<void> {
    const { session } = place;
    const stop = this._seen(place);
    return this._attempts.attempt<'RevertEdits'>(place, 'edits', {
      request: 'RevertEdits',
      session,
      stop
    });
  }

  swap(place: Place, direction: 'out' | 'in'): Promise<void> {
    const { session } = place;
    return direction === 'out'
      ? this._attempts.attempt<'SwapOut'>(place, 'swap', { request: 'SwapOut', session })
      : this._attempts.attempt<'SwapIn'>(place, 'swap', { request: 'SwapIn', session });
  }

  acceptRecomputed(place: Place): Promise<void> {
    const { session } = place;
    return this._attempts.attempt<'AcceptRecomputed'>(place, 'accept', {
      request: 'AcceptRecomputed',
      session
    });
  }

  async stopEngine(engine: string, force: boolean): Promise<void> {
    await this.sendRequest<'Shutdown'>(engine, { request: 'Shutdown', force });
  }

  /** The stop that the person sees: a move starts only from it, not from a later one. */
  private _seen(place: Place): StopIdentity | null {
    return find(this.model.live, place)?.described.stop ?? null;
  }

  private _onMessage(_: IChannel, message: Live): void {
    if (!follows(this.model.live, message)) {
      this._channel.send({ say: 'resync' });
      return;
    }
    this.model.live = reduce(this.model.live, message);
    if (message.live === 'snapshot') {
      this._channel.send({ say: 'focus', notebook: this.model.notebook });
      this._attempts.settleAll(message.outcomes);
    } else if (message.live === 'event') {
      if (message.event.event === 'SessionSwapped') {
        this.model.swapped(message.engine, message.event);
      }
      this._eventMessage.emit({ engine: message.engine, event: message.event });
    } else if (message.live === 'outcome') {
      this._attempts.settle(message);
    }
  }

  private _onConnection(): void {
    if (this._channel.connection.kind === 'differs') {
      this.model.live = NOTHING; // this page sends no request to a server with other messages
    }
    this.model.connection = this._channel.connection;
  }

  private readonly _channel: IChannel;
  /** Of closings: a page that is closed closes no session. */
  private readonly _timers = new Map<string, ReturnType<typeof setTimeout>>();
  private readonly _attempts = new Attempts(this);
  private readonly _modules = new Map<string, Promise<readonly ModuleDescription[]>>();
  private readonly _eventMessage = new Signal<this, IDjinn.IEventMessage>(this);
  private readonly _disposed = new Signal<this, void>(this);
  private _isDisposed = false;
}
