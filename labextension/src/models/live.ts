/* The state that the server reported, as one frozen value, and how each message changes it. Pure: no sockets, no
   clocks. */

import {
  EngineChange,
  Live,
  LiveDelta,
  LiveEngine,
  LiveOutcome,
  LiveSession,
  Transfer
} from '../wire';

/** Names one session of one engine. */
export interface Place {
  readonly engine: string;
  readonly session: string;
}

/** An engine that failed while this page was open. */
export interface Ended {
  readonly engine: string;
  readonly model: string;
  readonly reason: string;
}

/** A move of bytes between tiers, for the memory chart. `at` in seconds since the epoch. */
export interface Swap {
  readonly engine: string;
  readonly session: string;
  readonly transfer: Transfer;
}

/** A session with its place. */
export interface Placed {
  readonly place: Place;
  readonly session: LiveSession;
}

/** Rows of one batch, in order; `stem` is the label of its session. */
export interface Fold {
  readonly stem: string;
  readonly rows: readonly Placed[];
}

export interface LiveState {
  /** False until the first snapshot, and after a gap until the next. */
  readonly current: boolean;
  readonly version: string | null;
  readonly sequence: number;
  readonly at: number;
  readonly engines: { readonly [id: string]: LiveEngine };
  readonly ended: readonly Ended[];
  /** How the last move of a session ended, by `key`. */
  readonly outcomes: { readonly [key: string]: LiveOutcome };
}

export const NOTHING: LiveState = {
  current: false,
  version: null,
  sequence: -1,
  at: 0,
  engines: {},
  ended: [],
  outcomes: {}
};

export function key(place: Place): string {
  return `${place.engine}\n${place.session}`;
}

/** Whether `message` follows the present state; otherwise a snapshot has to be requested. */
export function follows(state: LiveState, message: Live): boolean {
  return message.live === 'snapshot' || (state.current && message.sequence === state.sequence + 1);
}

/** The state after `message`, which `follows`. */
export function reduce(state: LiveState, message: Live): LiveState {
  const { sequence } = message;
  switch (message.live) {
    case 'snapshot': {
      const { version, engines } = message;
      const outcomes = Object.fromEntries(message.outcomes.map(outcome => [key(outcome), outcome]));
      const ended = state.ended.filter(({ engine }) => !(engine in engines));
      return {
        current: true,
        version,
        sequence,
        at: message.at ?? state.at,
        engines,
        ended,
        outcomes
      };
    }
    case 'delta':
      return { ...withDelta(state, message), sequence, at: message.at ?? state.at };
    case 'outcome':
      return { ...state, sequence, outcomes: { ...state.outcomes, [key(message)]: message } };
    case 'event':
      return { ...state, sequence };
  }
}

function withDelta(state: LiveState, delta: LiveDelta): LiveState {
  const engines: { [id: string]: LiveEngine } = { ...state.engines, ...delta.appeared };
  for (const [id, change] of Object.entries(delta.changed)) {
    if (engines[id]) {
      engines[id] = changed(engines[id], change);
    }
  }
  const gone = Object.entries(delta.gone).map(([engine, reason]) => ({
    engine,
    reason,
    model: engines[engine]?.found.model ?? engine
  }));
  gone.forEach(({ engine }) => delete engines[engine]);
  const again = new Set(Object.values(delta.appeared).map(({ found }) => found.model));
  // An engine that ended in order, as by %djinn_stop, has no reason, and needs no notice.
  const told = gone.filter(({ reason }) => reason !== '');
  const ended = [...state.ended.filter(({ model }) => !again.has(model)), ...told];
  return { ...state, engines, ended };
}

function changed(engine: LiveEngine, change: EngineChange): LiveEngine {
  const sessions: { [name: string]: LiveSession } = { ...engine.sessions };
  for (const [name, session] of Object.entries(change.sessions ?? {})) {
    if (session === null) {
      delete sessions[name];
    } else {
      sessions[name] = session;
    }
  }
  return {
    found: change.found ?? engine.found,
    statistics: change.statistics ?? engine.statistics,
    sessions
  };
}

export function find(state: LiveState, place: Place | null): LiveSession | null {
  return (place && state.engines[place.engine]?.sessions[place.session]) ?? null;
}

/** Like `find`, but null while the connection to the session's engine is lost: a request would wait. */
export function reached(state: LiveState, place: Place | null): LiveSession | null {
  return isDown(place && state.engines[place.engine]) ? null : find(state, place);
}

export function isDown(engine: LiveEngine | null | undefined): boolean {
  return typeof engine?.found.down_since === 'number';
}

/** All sessions with their places: by engine, then by label, the rows of a batch (`a/0`) after their session. */
export function places(state: LiveState): Placed[] {
  return Object.entries(state.engines).flatMap(([engine, { sessions }]) =>
    Object.entries(sessions)
      .map(([session, value]) => ({ place: { engine, session }, session: value }))
      .sort((a, b) => inOrder(a.session.label, b.session.label))
  );
}

const COLLATOR = new Intl.Collator(undefined, { numeric: true });

/** Compares labels part by part, like paths: `a/2` comes after `a`, before `a/10`, and before `a-fork`. */
function inOrder(one: string, other: string): number {
  const [parts, others] = [one.split('/'), other.split('/')];
  const differs = parts.findIndex((part, index) => part !== others[index]);
  return differs < 0
    ? parts.length - others.length
    : COLLATOR.compare(parts[differs], others[differs] ?? '');
}

/** Whether a session is a row of a batch of one of these: `a/0` of `a`. */
export function isRowOf(label: string, labels: ReadonlySet<string>): boolean {
  const parent = /^(.+)\/\d+$/.exec(label)?.[1];
  return parent !== undefined && labels.has(parent);
}

const ROW = /^([^]+?)(\/\d+)+$/;

/** Sessions in order, with the rows of each batch (and their own rows) together where there are several of them. */
export function folded(all: readonly Placed[]): (Placed | Fold)[] {
  const runs: { stem: string | null; rows: Placed[] }[] = [];
  for (const one of all) {
    const stem = ROW.exec(one.session.label)?.[1] ?? null;
    const last = runs.at(-1);
    if (last && stem !== null && last.stem === stem) {
      last.rows.push(one);
    } else {
      runs.push({ stem, rows: [one] });
    }
  }
  return runs.map(({ stem, rows }) =>
    stem === null || rows.length < 2 ? rows[0] : { stem, rows }
  );
}

/** Whether a session can leave the device: it is there, and no pass of it runs. */
export function canLeave({ described }: LiveSession): boolean {
  return (
    described.residency === 'resident' &&
    described.state !== 'running' &&
    described.device_bytes > 0
  );
}

export function canReturn({ described }: LiveSession): boolean {
  return described.residency === 'host' || described.residency === 'disk';
}

/** The bytes of a session in its present tier. */
export function bytesOf({ described }: LiveSession): number {
  const { residency, device_bytes, host_bytes, disk_bytes } = described;
  return residency === 'disk'
    ? disk_bytes
    : residency === 'host' || residency === 'loading'
      ? host_bytes || disk_bytes
      : device_bytes;
}
