/* The verbs of the sidebar: asks engines over the line and keeps the model. Knows neither sockets nor widgets. */

import { ISignal, Signal } from '@lumino/signaling';

import { AskFailed, ILine, RequestOf, reasonOf } from './line';
import { Place, find, follows, reduce } from './live';
import { DjinnModel } from './model';
import {
  Answers,
  BreakpointDescription,
  Live,
  ModuleDescription,
  Shutdown,
  StopIdentity,
  WireEvent
} from './wire';

/** A breakpoint as a person asks for it. */
export type Wanted = Pick<BreakpointDescription, 'site' | 'when' | 'once'>;

export interface IHeardEvent {
  readonly engine: string;
  readonly event: WireEvent;
}

export class DjinnService {
  constructor(line: ILine, version: string) {
    this.version = version;
    this._line = line;
    line.heard.connect(this._hear, this);
    line.connectionChanged.connect(this._connected, this);
    line.connect();
  }

  readonly model = new DjinnModel();
  /** Of this page's own code, to be compared with the server's. */
  readonly version: string;

  /** What engines said happened, as it came. */
  get happened(): ISignal<this, IHeardEvent> {
    return this._happened;
  }

  reconnect(): void {
    this._line.connect();
  }

  /** Tell the server, and through it the engines, which notebook is in front. */
  focus(notebook: string | null): void {
    if (notebook !== this.model.notebook) {
      this.model.notebook = notebook;
      this._line.say({ say: 'focus', notebook });
    }
  }

  /** The notebook in front was renamed. */
  renamed(notebook: string): void {
    if (notebook !== this.model.notebook) {
      this.model.rename(notebook);
      this._line.say({ say: 'focus', notebook });
    }
  }

  ask<K extends keyof Answers>(engine: string, request: RequestOf<K>): Promise<Answers[K]> {
    return this._line.ask<K>(engine, request);
  }

  /** The modules of an engine's model. They do not change, so they are asked for once. */
  modules(engine: string): Promise<readonly ModuleDescription[]> {
    const known = this._modules.get(engine);
    const asked =
      known ??
      this.ask<'ListModules'>(engine, { request: 'ListModules' }).then(({ modules }) => modules);
    this._modules.set(engine, asked);
    asked.catch(() => this._modules.delete(engine));
    return asked;
  }

  resume(place: Place, free = false): Promise<void> {
    return this._try(place, () =>
      this.ask<'Resume'>(place.engine, {
        request: 'Resume',
        session: place.session,
        free,
        stop: this._seen(place)
      })
    );
  }

  pause(place: Place): Promise<void> {
    return this._try(place, () =>
      this.ask<'Pause'>(place.engine, { request: 'Pause', session: place.session })
    );
  }

  /** Over a layer, over a token (to the same site of a later pass), or to the next point inside the layer. */
  step(place: Place, by: 'layer' | 'token' | 'point' = 'layer'): Promise<void> {
    const { engine, session } = place;
    return this._try(place, () =>
      this.ask<'Step'>(engine, { request: 'Step', session, by, stop: this._seen(place) })
    );
  }

  back(place: Place, by: 'stop' | 'layer' | 'token' = 'stop'): Promise<void> {
    const { engine, session } = place;
    return this._try(place, () =>
      this.ask<'Back'>(engine, { request: 'Back', session, by, stop: this._seen(place) })
    );
  }

  /** So many stops back from where the session was seen to stand, and show it there. */
  async backTo(place: Place, count: number, stop: StopIdentity | null): Promise<void> {
    const { engine, session } = place;
    await this._try(place, async () => {
      await this.ask<'Back'>(engine, { request: 'Back', session, count, by: 'stop', stop });
      this.model.choose(place);
    });
  }

  async fork(place: Place, name: string): Promise<void> {
    const { engine, session } = place;
    await this._try(place, async () => {
      await this.ask<'Fork'>(engine, { request: 'Fork', session, name });
      this.model.choose({ engine, session: name });
    });
  }

  close(place: Place): Promise<void> {
    const { engine, session } = place;
    return this._try(place, () => this.ask<'Close'>(engine, { request: 'Close', session }));
  }

  setBreakpoint(place: Place, site: string): Promise<void> {
    return this._try(place, () => this.addBreakpoint(place, { site, when: null, once: false }));
  }

  /** Rejects with AskFailed, for a form that says beside its fields what is wrong with them. */
  async addBreakpoint(place: Place, wanted: Wanted): Promise<BreakpointDescription> {
    const { engine, session } = place;
    const { breakpoint } = await this.ask<'SetBreakpoint'>(engine, {
      request: 'SetBreakpoint',
      session,
      ...wanted
    });
    return breakpoint;
  }

  /** Give a breakpoint another condition; its hits are counted anew. One that is refused stays. Rejects as above. */
  async changeBreakpoint(
    place: Place,
    before: BreakpointDescription,
    wanted: Wanted
  ): Promise<void> {
    const { engine, session } = place;
    const { number } = await this.addBreakpoint(place, wanted);
    if (!before.enabled) {
      await this.ask<'EnableBreakpoint'>(engine, {
        request: 'EnableBreakpoint',
        session,
        number,
        enabled: false
      });
    }
    if (number !== before.number) {
      await this.ask<'ClearBreakpoints'>(engine, {
        request: 'ClearBreakpoints',
        session,
        sites: [String(before.number)]
      });
    }
  }

  enableBreakpoint(place: Place, number: number, enabled: boolean): Promise<void> {
    const { engine, session } = place;
    return this._try(place, () =>
      this.ask<'EnableBreakpoint'>(engine, {
        request: 'EnableBreakpoint',
        session,
        number,
        enabled
      })
    );
  }

  /** `numbers` null clears all. */
  clearBreakpoints(place: Place, numbers: readonly number[] | null): Promise<void> {
    const { engine, session } = place;
    const sites = numbers?.map(String) ?? null;
    return this._try(place, () =>
      this.ask<'ClearBreakpoints'>(engine, { request: 'ClearBreakpoints', session, sites })
    );
  }

  /** End a steering rule. */
  unsteer(place: Place, number: number): Promise<void> {
    const { engine, session } = place;
    return this._try(place, () =>
      this.ask<'Unsteer'>(engine, { request: 'Unsteer', session, number })
    );
  }

  /** Turn a steering rule off without ending it, or on again. */
  enableRule(place: Place, number: number, enabled: boolean): Promise<void> {
    const { engine, session } = place;
    return this._try(place, () =>
      this.ask<'EnableRule'>(engine, { request: 'EnableRule', session, number, enabled })
    );
  }

  /** Turn an edit of the present stop off, or on again. */
  enableEdit(place: Place, number: number, enabled: boolean): Promise<void> {
    const { engine, session } = place;
    const stop = this._seen(place);
    return this._try(place, () =>
      this.ask<'EnableEdit'>(engine, { request: 'EnableEdit', session, number, enabled, stop })
    );
  }

  /** The stopped value as the pass brought it. */
  revert(place: Place): Promise<void> {
    const { engine, session } = place;
    return this._try(place, () =>
      this.ask<'RevertEdits'>(engine, { request: 'RevertEdits', session, stop: this._seen(place) })
    );
  }

  swap(place: Place, direction: 'out' | 'in'): Promise<void> {
    const { engine, session } = place;
    return this._try(place, () =>
      direction === 'out'
        ? this.ask<'SwapOut'>(engine, { request: 'SwapOut', session })
        : this.ask<'SwapIn'>(engine, { request: 'SwapIn', session })
    );
  }

  acceptRecomputed(place: Place): Promise<void> {
    const { engine, session } = place;
    return this._try(place, () =>
      this.ask<'AcceptRecomputed'>(engine, { request: 'AcceptRecomputed', session })
    );
  }

  /** End an engine. Rejects with AskFailed named SessionsWouldSuffer when notebooks have sessions, unless `force`. */
  async stopEngine(engine: string, force: boolean): Promise<void> {
    const request: Shutdown = { request: 'Shutdown', force };
    await this.ask<'Shutdown'>(engine, request);
  }

  /** The stop that the person sees: a move is for it, and for no other that the session has come to meanwhile. */
  private _seen(place: Place): StopIdentity | null {
    return find(this.model.live, place)?.described.stop ?? null;
  }

  /** Do something; what is refused becomes a remark beside the session. */
  private async _try(place: Place, act: () => Promise<unknown>): Promise<void> {
    this.model.remark = null;
    try {
      await act();
    } catch (error) {
      this.model.remark = { place, text: reasonOf(error) };
    }
  }

  private _hear(_: ILine, message: Live): void {
    if (!follows(this.model.live, message)) {
      this._line.say({ say: 'resync' });
      return;
    }
    this.model.live = reduce(this.model.live, message);
    if (message.live === 'snapshot') {
      this._line.say({ say: 'focus', notebook: this.model.notebook });
    } else if (message.live === 'event') {
      if (message.event.event === 'SessionSwapped') {
        this.model.swapped(message.engine, message.event);
      }
      this._happened.emit({ engine: message.engine, event: message.event });
    } else if (message.live === 'outcome' && message.reply.reply === 'Failed') {
      this.model.remark = { place: message, text: new AskFailed(message.reply).message };
    }
  }

  private _connected(): void {
    this.model.connection = this._line.connection;
  }

  private readonly _line: ILine;
  private readonly _modules = new Map<string, Promise<readonly ModuleDescription[]>>();
  private readonly _happened = new Signal<this, IHeardEvent>(this);
}
