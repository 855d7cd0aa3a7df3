/* What the panels show: the live state, the session chosen in it, and what went wrong last. Asks nobody anything. */

import { ISignal, Signal } from '@lumino/signaling';

import { Connection } from './line';
import {
  Choice,
  Formerly,
  NO_CHOICE,
  leftBehind,
  pick,
  rename,
  renamed,
  same,
  settle,
  toFront
} from './choice';
import { LiveState, NOTHING, Place, find } from './live';
import { NO_PAST, Past, markSwap, readingOf, remember } from './memory';
import { LiveEngine, LiveSession, SessionSwapped } from './wire';

/** What a person sets; the schema has the same defaults. */
export interface Preferences {
  readonly followNotebook: boolean;
  readonly memoryMinutes: number;
  readonly lensTop: number;
}

/** A sentence for a person about one session or engine, until it is read or the next move begins. */
export interface Remark {
  readonly place: Place | null;
  readonly text: string;
}

export class DjinnModel {
  /** Emitted after any change; readers compare the values that they show. */
  get changed(): ISignal<this, void> {
    return this._changed;
  }

  get live(): LiveState {
    return this._live;
  }

  set live(live: LiveState) {
    this._remember(live);
    this._live = live;
    this._choose(settle(this._choice, live));
  }

  get connection(): Connection {
    return this._connection;
  }

  set connection(connection: Connection) {
    this._connection = connection;
    this._changed.emit();
  }

  /** The session that commands act on. */
  get chosen(): Place | null {
    return this._choice.shown;
  }

  /** What a person chose, here or in an earlier visit; it stands as soon as that session is there. */
  choose(place: Place | null): void {
    this._choose(pick(this._choice, this._live, place));
  }

  get notebook(): string | null {
    return this._notebook;
  }

  /** The notebook in front: its session is shown. */
  set notebook(path: string | null) {
    this._notebook = path;
    this._choose(toFront(this._choice, this._live, this._followed));
  }

  /** The notebook in front has got another path. */
  rename(path: string): void {
    if (this._notebook !== null) {
      this._formerly = rename(this._formerly, this._notebook, path);
    }
    this._notebook = path;
    if (this._followed !== null) {
      this._choose(renamed(this._choice, this._live, path));
    }
  }

  /** The session that the notebook in front had under its former name, when it does not work with it any more. */
  get left(): Place | null {
    return this._notebook === null ? null : leftBehind(this._live, this._notebook, this._formerly);
  }

  /** Under which names notebooks were known before, in earlier visits too. */
  get formerly(): Formerly {
    return this._formerly;
  }

  set formerly(formerly: Formerly) {
    this._formerly = formerly;
    this._changed.emit();
  }

  get session(): LiveSession | null {
    return find(this._live, this.chosen);
  }

  get engine(): LiveEngine | null {
    return this.chosen ? (this._live.engines[this.chosen.engine] ?? null) : null;
  }

  get stopped(): boolean {
    return this.session?.described.state === 'paused';
  }

  get remark(): Remark | null {
    return this._remark;
  }

  set remark(remark: Remark | null) {
    this._remark = remark;
    this._changed.emit();
  }

  /** The rows that are open in the tree of layers, by id. */
  get opened(): ReadonlySet<string> {
    return this._opened;
  }

  set opened(ids: ReadonlySet<string>) {
    this._opened = ids;
    this._changed.emit();
  }

  /** The person has read that this engine ended. */
  dismiss(engine: string): void {
    const ended = this._live.ended.filter(one => one.engine !== engine);
    this._live = { ...this._live, ended };
    this._changed.emit();
  }

  get preferences(): Preferences {
    return this._preferences;
  }

  set preferences(preferences: Preferences) {
    this._preferences = preferences;
    this._choose(toFront(this._choice, this._live, this._followed));
  }

  /** The memory of an engine over the last minutes. */
  past(engine: string): Past {
    return this._past.get(engine) ?? NO_PAST;
  }

  swapped(engine: string, { session, transfer }: SessionSwapped): void {
    const swap = { engine, session, transfer };
    this._past.set(engine, markSwap(this.past(engine), swap, this._live.at));
    this._changed.emit();
  }

  /** The notebook that decides what is shown. */
  private get _followed(): string | null {
    return this._preferences.followNotebook ? this._notebook : null;
  }

  private _remember(live: LiveState): void {
    for (const [id, { statistics }] of Object.entries(live.engines)) {
      if (statistics && statistics !== this._live.engines[id]?.statistics) {
        const reading = readingOf(statistics, live.at);
        this._past.set(id, remember(this.past(id), reading, 60 * this._preferences.memoryMinutes));
      }
    }
    [...this._past.keys()].filter(id => !(id in live.engines)).forEach(id => this._past.delete(id));
  }

  private _choose(choice: Choice): void {
    const before = this.chosen;
    this._choice = choice;
    if (this._remark?.place && !same(before, choice.shown)) {
      this._remark = null;
    }
    this._changed.emit();
  }

  private readonly _changed = new Signal<this, void>(this);
  private _formerly: Formerly = new Map();
  private readonly _past = new Map<string, Past>();
  private _preferences: Preferences = { followNotebook: true, memoryMinutes: 10, lensTop: 5 };
  private _live: LiveState = NOTHING;
  private _connection: Connection = { kind: 'connecting' };
  private _choice: Choice = NO_CHOICE;
  private _notebook: string | null = null;
  private _opened: ReadonlySet<string> = new Set();
  private _remark: Remark | null = null;
}
