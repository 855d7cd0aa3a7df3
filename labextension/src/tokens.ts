/* The interfaces that this extension offers to others, under tokens. */

import { Token } from '@lumino/coreutils';
import { IDisposable, IObservableDisposable } from '@lumino/disposable';
import { ISignal } from '@lumino/signaling';

import { Formerly } from './models/choice';
import { Connection } from './models/connection';
import { Graph, Graphs } from './models/graph';
import { LiveState, Place, Placed } from './models/live';
import { Past } from './models/memory';
import { Refusals, Subject } from './models/refusals';
import { Closing } from './models/closing';
import {
  Answers,
  BreakpointDescription,
  Edit,
  LiveEngine,
  LiveSession,
  AddedModuleDescription,
  ModuleDescription,
  SessionSwapped,
  StopDescription,
  StopIdentity,
  WireEvent,
  WireRequest
} from './wire';

/**
 * Engines and sessions of Djinn, and the verbs to move them. A refused verb resolves too: its sentence is in
 * `model.refusals` under the subject of the request, until that request succeeds.
 */
export interface IDjinn extends IObservableDisposable {
  readonly model: IDjinn.IModel;
  /** The version of this page's own code, to be compared with the server's. */
  readonly version: string;
  /** Emitted for each event of an engine. */
  readonly eventMessage: ISignal<IDjinn, IDjinn.IEventMessage>;

  /** Connect to the server now, without waiting for the next attempt. */
  reconnect(): void;
  /** Notify the server, and through it the engines, of the notebook in front. */
  focus(notebook: string | null): void;
  /** Notify the server that the notebook in front was renamed. */
  renamed(notebook: string): void;

  /** The engine's reply. Rejects with `RequestRefused`. */
  sendRequest<K extends keyof Answers>(
    engine: string,
    request: IDjinn.RequestOf<K>
  ): Promise<Answers[K]>;
  /** The modules of an engine's model, requested once: they do not change. Rejects with `RequestRefused`. */
  modules(engine: string): Promise<readonly ModuleDescription[]>;
  /** The modules that the user has added to the model, as they are now. Rejects with `RequestRefused`. */
  addedModules(engine: string): Promise<readonly AddedModuleDescription[]>;

  resume(place: Place, free?: boolean): Promise<void>;
  pause(place: Place): Promise<void>;
  /** Over a layer, over a token (to the same site of a later pass), or to the next point inside the layer. */
  step(place: Place, by?: 'layer' | 'token' | 'point'): Promise<void>;
  back(place: Place, by?: 'stop' | 'layer' | 'token'): Promise<void>;
  /** Go `count` stops back from `stop`, the session's displayed stop, to the stop `to`, and show the session. */
  backTo(
    place: Place,
    to: StopDescription,
    count: number,
    stop: StopIdentity | null
  ): Promise<void>;
  fork(place: Place, name: string): Promise<void>;
  /** End a session. Rejects with `RequestRefused`, named SessionsWouldSuffer where it is another notebook's, unless `force`. */
  close(place: Place, force?: boolean): Promise<void>;
  /** Set the sessions of closed notebooks aside. They are closed after UNDO_SECONDS, those that no one has used since. */
  closeLeft(engine: string): void;
  /** Have the sessions back that are set aside, as they are: none of them was closed. */
  undoClosing(engine: string): void;
  swap(place: Place, direction: 'out' | 'in'): Promise<void>;
  acceptRecomputed(place: Place): Promise<void>;

  setBreakpoint(place: Place, site: string, when?: string | null): Promise<void>;
  /** Rejects with `RequestRefused`, for a form that shows the sentence itself. */
  addBreakpoint(place: Place, wanted: IDjinn.Wanted): Promise<BreakpointDescription>;
  /** Give a breakpoint another condition; its hits are counted anew. A refusal changes nothing. Rejects as above. */
  changeBreakpoint(
    place: Place,
    before: BreakpointDescription,
    wanted: IDjinn.Wanted
  ): Promise<void>;
  enableBreakpoint(place: Place, number: number, enabled: boolean): Promise<void>;
  /** `numbers` null clears all. `about` is the subject of the request. */
  clearBreakpoints(place: Place, numbers: readonly number[] | null, about?: string): Promise<void>;

  /** End a steering rule. */
  unsteer(place: Place, number: number): Promise<void>;
  /** Turn a steering rule off without ending it, or on again. */
  enableRule(place: Place, number: number, enabled: boolean): Promise<void>;
  /** Edit the stopped value at a site, at all positions of the pass. */
  edit(place: Place, site: string, edit: Edit): Promise<void>;
  /** Turn an edit of the present stop off, or on again. */
  enableEdit(place: Place, number: number, enabled: boolean): Promise<void>;
  /** Undo all edits of the present stop. */
  revert(place: Place): Promise<void>;

  /** End an engine. Rejects with `RequestRefused` named SessionsWouldSuffer when notebooks have sessions, unless `force`. */
  stopEngine(engine: string, force: boolean): Promise<void>;
}

export namespace IDjinn {
  export type RequestOf<K extends keyof Answers> = Extract<WireRequest, { request: K }>;

  /** A breakpoint as a person requests it. */
  export type Wanted = Pick<BreakpointDescription, 'site' | 'when' | 'once'>;

  export interface IEventMessage {
    readonly engine: string;
    readonly event: WireEvent;
  }

  /** The settings; the schema has the same defaults. */
  export interface IPreferences {
    readonly followNotebook: boolean;
    readonly memoryMinutes: number;
    readonly lensTop: number;
  }

  /** The state that the panels show. Readers compare the values that they draw. */
  export interface IModel extends IDisposable {
    /** Emitted after any change. */
    readonly stateChanged: ISignal<IModel, void>;
    live: LiveState;
    connection: Connection;
    preferences: IPreferences;
    /** The session that commands act on. */
    readonly chosen: Place | null;
    /** A person's choice, here or in an earlier visit; it holds as soon as that session is there. */
    choose(place: Place | null): void;
    /** The graphs of edges that this page has drawn, or found in a notebook. */
    readonly graphs: Graphs;
    showGraph(graph: Graph): void;
    /** The notebook in front, whose session is shown. */
    notebook: string | null;
    /** The notebook in front was renamed. */
    rename(path: string): void;
    /** The session that the notebook in front had under its former name, when it does not work with it any more. */
    readonly left: Place | null;
    /** The names of notebooks before they were renamed, in earlier visits too. */
    formerly: Formerly;
    readonly session: LiveSession | null;
    readonly engine: LiveEngine | null;
    readonly stopped: boolean;
    readonly refusals: Refusals;
    /** Show the sentence of a failed request where it was asked. */
    refuse(subject: Subject, text: string): void;
    /** The request succeeded, or a person has read the sentence. */
    withdraw(subject: Subject): void;
    /** The sessions of an engine that are set aside, and can still be had back. */
    aside(engine: string): readonly Placed[];
    closingOf(engine: string): Closing | undefined;
    setAside(engine: string, closing?: Closing): void;
    /** The open rows of the tree of layers, by id. */
    opened: ReadonlySet<string>;
    /** A person has read that this engine ended. */
    dismiss(engine: string): void;
    /** The memory of an engine over the last minutes. */
    past(engine: string): Past;
    swapped(engine: string, event: SessionSwapped): void;
  }
}

export const IDjinn = new Token<IDjinn>(
  'djinn-jupyter:IDjinn',
  'Engines and sessions of Djinn: their state, and the verbs to move them.'
);

/** Djinn's panels. */
export interface ISidebar extends IDisposable {
  /** The folded panels, by id. */
  folded: readonly string[];
  readonly foldedChanged: ISignal<unknown, unknown>;
}

export const ISidebar = new Token<ISidebar>('djinn-jupyter:ISidebar', "Djinn's panels.");
