/* What the panels show: the live state, the session chosen in it, and what went wrong last. Asks nobody anything. */

import { ISignal, Signal } from '@lumino/signaling';

import { Connection } from './line';
import { LiveState, NOTHING, Place, choose, find, key, ofNotebook } from './live';
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
    const before = ofNotebook(this._live, this._notebook);
    this._live = live;
    if (before.length === 0) {
      this._follow();
    }
    this._settle();
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
    return this._chosen;
  }

  /** What a person chose, here or in an earlier visit; it stands as soon as that session is there. */
  choose(place: Place | null): void {
    this._wanted = place;
    this._settle();
  }

  get notebook(): string | null {
    return this._notebook;
  }

  /** The notebook in front. Its session is shown, unless a session of it is shown already. */
  set notebook(path: string | null) {
    this._notebook = path;
    this._follow();
    this._settle();
  }

  get session(): LiveSession | null {
    return find(this._live, this._chosen);
  }

  get engine(): LiveEngine | null {
    return this._chosen ? (this._live.engines[this._chosen.engine] ?? null) : null;
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
    this._changed.emit();
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

  /** To the session of the notebook in front, when it has one. */
  private _follow(): void {
    const own = ofNotebook(this._live, this._notebook);
    if (
      this._preferences.followNotebook &&
      own.length &&
      !own.some(place => same(place, this._chosen))
    ) {
      this._wanted = own[0];
    }
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

  private _settle(): void {
    const before = this._chosen;
    this._chosen = choose(this._live, this._wanted ?? this._chosen, this._notebook);
    if (find(this._live, this._wanted)) {
      this._wanted = null;
    }
    if (this._remark?.place && !same(before, this._chosen)) {
      this._remark = null;
    }
    this._changed.emit();
  }

  private readonly _changed = new Signal<this, void>(this);
  private readonly _past = new Map<string, Past>();
  private _preferences: Preferences = { followNotebook: true, memoryMinutes: 10, lensTop: 5 };
  private _live: LiveState = NOTHING;
  private _connection: Connection = { kind: 'connecting' };
  private _wanted: Place | null = null;
  private _chosen: Place | null = null;
  private _notebook: string | null = null;
  private _opened: ReadonlySet<string> = new Set();
  private _remark: Remark | null = null;
}

export function same(a: Place | null, b: Place | null): boolean {
  return a === b || (a !== null && b !== null && key(a) === key(b));
}
