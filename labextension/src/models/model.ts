/* The state that the panels show: the live state, the session chosen in it, the refusals. Sends no requests. */

import { ISignal, Signal } from '@lumino/signaling';

import {
  Choice,
  Formerly,
  NO_CHOICE,
  leftBehind,
  pick,
  rename,
  renamed,
  settle,
  toFront
} from './choice';
import { Connection } from './connection';
import { Graph, Graphs, NO_GRAPHS, withGraph } from './graph';
import { LiveState, NOTHING, Place, Placed, find } from './live';
import { NO_PAST, Past, markSwap, readingOf, remember } from './memory';
import { NO_REFUSALS, Refusals, Subject, refuse, stillThere, withdraw } from './refusals';
import { IDjinn } from '../tokens';
import { Closing, aside } from './closing';
import { LiveEngine, LiveSession, SessionSwapped } from '../wire';

export class DjinnModel implements IDjinn.IModel {
  get stateChanged(): ISignal<this, void> {
    return this._stateChanged;
  }

  get isDisposed(): boolean {
    return this._isDisposed;
  }

  /** Disconnect all listeners. */
  dispose(): void {
    this._isDisposed = true;
    Signal.clearData(this);
  }

  get live(): LiveState {
    return this._live;
  }

  set live(live: LiveState) {
    this._remember(live);
    this._live = live;
    this._refusals = stillThere(this._refusals, live);
    this._choose(settle(this._choice, live));
  }

  get connection(): Connection {
    return this._connection;
  }

  set connection(connection: Connection) {
    this._connection = connection;
    this._stateChanged.emit();
  }

  /** The session that commands act on. */
  get chosen(): Place | null {
    return this._choice.shown;
  }

  /** A person's choice, here or in an earlier visit; it holds as soon as that session is there. */
  choose(place: Place | null): void {
    this._choose(pick(this._choice, this._live, place));
  }

  get notebook(): string | null {
    return this._notebook;
  }

  /** The notebook in front, whose session is shown. */
  set notebook(path: string | null) {
    this._notebook = path;
    this._choose(toFront(this._choice, this._live, this._followed));
  }

  /** The notebook in front has another path. */
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

  /** The names of notebooks before they were renamed, in earlier visits too. */
  get formerly(): Formerly {
    return this._formerly;
  }

  set formerly(formerly: Formerly) {
    this._formerly = formerly;
    this._stateChanged.emit();
  }

  /** The graphs of edges that this page has drawn, or found in a notebook. */
  get graphs(): Graphs {
    return this._graphs;
  }

  showGraph(graph: Graph): void {
    const graphs = withGraph(this._graphs, graph);
    if (graphs !== this._graphs) {
      this._graphs = graphs;
      this._stateChanged.emit();
    }
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

  get refusals(): Refusals {
    return this._refusals;
  }

  /** Show the sentence of a failed request where it was asked. */
  refuse(subject: Subject, text: string): void {
    this._refusals = refuse(this._refusals, subject, text);
    this._stateChanged.emit();
  }

  /** The request succeeded, or a person has read the sentence. */
  withdraw(subject: Subject): void {
    const refusals = withdraw(this._refusals, subject);
    if (refusals !== this._refusals) {
      this._refusals = refusals;
      this._stateChanged.emit();
    }
  }

  /** The sessions of an engine that are set aside to be closed, and can still be had back. */
  aside(engine: string): readonly Placed[] {
    return aside(this._live, this._closings.get(engine));
  }

  closingOf(engine: string): Closing | undefined {
    return this._closings.get(engine);
  }

  /** Set sessions aside; without a closing, show those of the engine's last one again. */
  setAside(engine: string, closing?: Closing): void {
    this._closings.delete(engine);
    if (closing) {
      this._closings.set(engine, closing);
    }
    this._stateChanged.emit();
  }

  /** The open rows of the tree of layers, by id. */
  get opened(): ReadonlySet<string> {
    return this._opened;
  }

  set opened(ids: ReadonlySet<string>) {
    this._opened = ids;
    this._stateChanged.emit();
  }

  /** The person has read that this engine ended. */
  dismiss(engine: string): void {
    const ended = this._live.ended.filter(one => one.engine !== engine);
    this._live = { ...this._live, ended };
    this._stateChanged.emit();
  }

  get preferences(): IDjinn.IPreferences {
    return this._preferences;
  }

  set preferences(preferences: IDjinn.IPreferences) {
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
    this._stateChanged.emit();
  }

  /** The notebook whose session is shown. */
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
    this._choice = choice;
    this._stateChanged.emit();
  }

  private readonly _stateChanged = new Signal<this, void>(this);
  private _formerly: Formerly = new Map();
  private readonly _closings = new Map<string, Closing>();
  private readonly _past = new Map<string, Past>();
  private _preferences: IDjinn.IPreferences = {
    followNotebook: true,
    memoryMinutes: 10,
    lensTop: 5
  };
  private _live: LiveState = NOTHING;
  private _graphs: Graphs = NO_GRAPHS;
  private _connection: Connection = { kind: 'connecting' };
  private _choice: Choice = NO_CHOICE;
  private _notebook: string | null = null;
  private _opened: ReadonlySet<string> = new Set();
  private _refusals: Refusals = NO_REFUSALS;
  private _isDisposed = false;
}
