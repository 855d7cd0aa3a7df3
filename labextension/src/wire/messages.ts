/* Written by docs/write_reference.py from the structs of the package; change those, not this file. */

import {
  Float,
} from './values';

import {
  EngineStatistics,
  ModelDescription,
  SessionDescription,
} from './nouns';

import {
  WireEvent,
} from './events';

import {
  WireReply,
} from './reply';

export type EngineState = 'connecting' | 'ready' | 'refused';

/** A kernel of this server. `state` is Jupyter's execution state: starting, idle, busy, restarting, dead... */
export interface KernelDescription {
  readonly id: string;
  readonly state: string;
}

/**
 * A session with its notebook and kernel. `notebook` is the contents path of the notebook that it belongs to,
 * `kernel` the kernel that holds it, both None where this server has none. `idle_since` in seconds since the epoch;
 * `described.idle_seconds` is as of the last change of any other field. `closed`: no kernel or process has it open,
 * and its notebook has no kernel.
 */
export interface LiveSession {
  readonly described: SessionDescription;
  readonly label: string;
  readonly notebook: string | null;
  readonly kernel: KernelDescription | null;
  readonly idle_since: Float;
  readonly closed: boolean;
}

/**
 * An engine of the registry. In state `refused` it has no connection, for `reason`; `description` is None until
 * `ready`. `model` is the name as requested, `load` the arguments of `%djinn_load` that select this engine; `started`
 * in seconds since the epoch. `pid` is None on another machine, which `host` then names as the user does. `down_since`
 * is when the line to it was lost, in seconds since the epoch; None while it is up.
 */
export interface EngineFound {
  readonly id: string;
  readonly model: string;
  readonly load: string;
  readonly pid: number | null;
  readonly host: string;
  readonly version: string;
  readonly started: Float;
  readonly state: 'connecting' | 'ready' | 'refused';
  readonly reason: string | null;
  readonly description: ModelDescription | null;
  readonly down_since: Float | null;
}

/** An engine with its statistics and its sessions by name. `statistics` is None until first read. */
export interface LiveEngine {
  readonly found: EngineFound;
  readonly statistics: EngineStatistics | null;
  readonly sessions: { readonly [name: string]: LiveSession };
}

/** The answer of GET engines; `version` is the server's own, `protocol` the digest of the messages that it knows. */
export interface Engines {
  readonly version: string;
  readonly protocol: string;
  readonly engines: readonly EngineFound[];
}

/** The engine has accepted a move; its outcome comes over the WebSocket under the same number. */
export interface Accepted {
  readonly reply: 'Accepted';
  readonly move: number;
}

/** The number of tokens a session sampled since the last delta, and the text of at most the last 1000 of them. */
export interface Sampled {
  readonly count: number;
  readonly step: number;
  readonly text: string;
}

/** The changed parts of an engine; omitted fields are unchanged. A session that is null has been closed. */
export interface EngineChange {
  readonly found?: EngineFound;
  readonly statistics?: EngineStatistics;
  readonly sessions?: { readonly [name: string]: LiveSession | null };
  readonly sampled?: { readonly [name: string]: Sampled };
}

/** The end of an accepted move: Paused, Finished or Failed. `request` is the verb's name. */
export interface LiveOutcome {
  readonly live: 'outcome';
  readonly sequence: number;
  readonly engine: string;
  readonly session: string;
  readonly request: string;
  readonly move: number;
  readonly reply: WireReply;
}

/**
 * The whole state, sent at each connect and after a gap; it replaces all earlier state. `outcomes` are the latest
 * ones, oldest first, for a browser that was disconnected. `at` in seconds since the epoch.
 */
export interface LiveSnapshot {
  readonly live: 'snapshot';
  readonly sequence: number;
  readonly at: Float;
  readonly version: string;
  readonly engines: { readonly [name: string]: LiveEngine };
  readonly outcomes: readonly LiveOutcome[];
}

/** The changes since the previous message. `gone` maps ended engines to reasons, "" where in order. */
export interface LiveDelta {
  readonly live: 'delta';
  readonly sequence: number;
  readonly at: Float;
  readonly appeared: { readonly [name: string]: LiveEngine };
  readonly changed: { readonly [name: string]: EngineChange };
  readonly gone: { readonly [name: string]: string };
}

/** An engine's event, unchanged. TokenSampled is not forwarded: see `EngineChange.sampled`. */
export interface LiveEvent {
  readonly live: 'event';
  readonly sequence: number;
  readonly engine: string;
  readonly event: WireEvent;
}

/** The notebook that this browser window shows now, by its contents path; None for none. */
export interface Focus {
  readonly say: 'focus';
  readonly notebook: string | null;
}

/** A request for a snapshot, after the browser missed a message. */
export interface Resync {
  readonly say: 'resync';
}

export type Live =
  | LiveSnapshot
  | LiveDelta
  | LiveEvent
  | LiveOutcome;

export type Said =
  | Focus
  | Resync;
