/* The channel's double: keeps what was asked, answers what a test says, and tells what a test has it tell. */

import { Signal } from '@lumino/signaling';

import { Connection } from '../src/models/connection';
import { IChannel, RequestRefused } from '../src/service/channel';
import { IDjinn } from '../src/tokens';
import {
  Answers,
  BreakpointDescription,
  EngineFound,
  Live,
  LiveEngine,
  LiveSession,
  LiveSnapshot,
  ModelDescription,
  PointDescription,
  Said,
  SessionDescription,
  WireRequest
} from '../src/wire';

type Answer = (request: WireRequest) => unknown;

export class ChannelDouble implements IChannel {
  readonly messageReceived: Signal<IChannel, Live> = new Signal<IChannel, Live>(this);
  readonly connectionStatusChanged: Signal<IChannel, Connection> = new Signal<IChannel, Connection>(
    this
  );
  connection: Connection = { kind: 'connecting' };
  readonly asked: { engine: string; request: WireRequest }[] = [];
  /** The notebook that each was asked beside. */
  readonly besides: (string | null)[] = [];
  readonly said: Said[] = [];
  connects = 0;
  isDisposed = false;
  answer: Answer = () => ({ reply: 'Accepted', move: 1 });

  async sendRequest<K extends keyof Answers>(
    engine: string,
    request: IDjinn.RequestOf<K>,
    notebook: string | null = null
  ): Promise<Answers[K]> {
    this.asked.push({ engine, request });
    this.besides.push(notebook);
    return this.answer(request) as Answers[K];
  }

  send(message: Said): void {
    this.said.push(message);
  }

  connect(): void {
    this.connects += 1;
  }

  dispose(): void {
    this.isDisposed = true;
    Signal.clearData(this);
  }

  tell(message: Live): void {
    this.messageReceived.emit(message);
  }

  stand(connection: Connection): void {
    this.connection = connection;
    this.connectionStatusChanged.emit(connection);
  }

  /** The requests so far, by name. */
  get verbs(): string[] {
    return this.asked.map(({ request }) => request.request);
  }
}

export function refuse(message: string): never {
  throw new RequestRefused({ code: 'IllegalMove', message });
}

export function point(
  name: string,
  layers: number[] | null,
  more: Partial<PointDescription> = {}
): PointDescription {
  const shape = 'T D';
  return {
    point: name,
    layers,
    shape,
    heads: null,
    features: 8,
    editable: true,
    absent: null,
    module: null,
    ...more
  };
}

const ALL = [0, 1, 2, 3];

export const MODEL: ModelDescription = {
  name: 'demo',
  revision: null,
  architecture: 'Tiny',
  dtype: 'float32',
  device: 'cpu',
  attention: 'sdpa',
  layers: 4,
  hidden_size: 8,
  vocab_size: 32,
  context_length: 64,
  parameters: 1000,
  weight_bytes: 4000,
  has_tokenizer: true,
  has_chat_template: false,
  eos_token_ids: [],
  points: [
    point('embed', null),
    point('resid_pre', ALL),
    point('attn_in', ALL),
    point('pattern', ALL, { editable: false }),
    point('z', ALL),
    point('resid_mid', []),
    point('mlp_out', ALL),
    point('resid_post', ALL),
    point('ln_final', null),
    point('logits', null)
  ],
  cache_groups: [],
  recurrent_state_bytes: 0,
  feeding: 'chunks',
  generation_defaults: {},
  notes: [],
  checks: []
};

export function found(id: string, more: Partial<EngineFound> = {}): EngineFound {
  return {
    id,
    model: 'demo',
    load: 'demo',
    pid: 4242,
    host: 'here',
    version: '0.1.0',
    started: 1,
    state: 'ready',
    reason: null,
    description: MODEL,
    down_since: null,
    ...more
  };
}

export function breakpoint(
  number: number,
  site: string,
  more: Partial<BreakpointDescription> = {}
): BreakpointDescription {
  return {
    number,
    site,
    when: null,
    once: false,
    enabled: true,
    hits: 0,
    note: null,
    ...more
  };
}

export function session(
  name: string,
  more: Partial<SessionDescription> = {},
  notebook: string | null = null
): LiveSession {
  const described: SessionDescription = {
    name,
    owner: 'ada',
    holder: null,
    state: 'idle',
    tokens: 5,
    committed: 5,
    stopped_at: null,
    step: null,
    breakpoints: [],
    rules: [],
    watches: [],
    stops_kept: 0,
    stop: { session: name, number: 1, edition: 1 },
    pages: 1,
    device_bytes: 1024,
    idle_seconds: 0,
    residency: 'resident',
    host_bytes: 0,
    disk_bytes: 0,
    dirty_bytes: 0,
    shares: [],
    exactness: 'exact',
    last_transfer: null,
    kept: true,
    in_use: false,
    notebook: null,
    attention: null,
    adapter: null,
    progress: null,
    ...more
  };
  return {
    described,
    label: name.split('/').at(-1) ?? name,
    notebook,
    kernel: null,
    idle_since: 1,
    closed: false
  };
}

export function engine(id: string, ...sessions: LiveSession[]): LiveEngine {
  const named = Object.fromEntries(sessions.map(one => [one.described.name, one]));
  return { found: found(id), statistics: null, sessions: named };
}

export function snapshot(
  sequence: number,
  engines: LiveEngine[],
  more: Partial<LiveSnapshot> = {}
): LiveSnapshot {
  const named = Object.fromEntries(engines.map(one => [one.found.id, one]));
  return {
    live: 'snapshot',
    sequence,
    at: 100,
    version: '0.1.0',
    engines: named,
    outcomes: [],
    ...more
  };
}
