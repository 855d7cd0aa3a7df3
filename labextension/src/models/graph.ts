/* A graph of edges as a kernel sends it, and the last of each session that this page has drawn. Pure. */

import { Place, key } from './live';

/** What the widgets of the kernel write under this type. */
export const GRAPH_TYPE = 'application/vnd.djinn.edges+json';

export interface GraphNode {
  readonly label: string;
  readonly site: string;
  /** Its middle, and its upper side. */
  readonly x: number;
  readonly y: number;
  /** Whether queries, keys and values come in side by side. */
  readonly ports: boolean;
}

export interface GraphEdge {
  readonly writer: string;
  readonly reader: string;
  /** Where a breakpoint stops it. */
  readonly site: string;
  readonly score: number;
  readonly text: string;
  /** The exact change, empty where the edge was not patched. */
  readonly exact: string;
  readonly thickness: number;
  readonly path: string;
}

/** `engine`, `session` and `stop` are what it was read from, null where that was no session of an engine's process. */
export interface Graph {
  readonly engine: string | null;
  readonly session: string | null;
  readonly label: string | null;
  readonly stop: { readonly number: number; readonly edition: number } | null;
  readonly metric: string;
  readonly how: string;
  readonly facts: readonly (readonly [string, string])[];
  readonly notes: readonly string[];
  readonly width: number;
  readonly height: number;
  readonly box: readonly [number, number];
  readonly nodes: readonly GraphNode[];
  readonly edges: readonly GraphEdge[];
}

/** The graph in a bundle; null where a file has something else under its type. */
export function asGraph(data: unknown): Graph | null {
  const graph = data as Graph | null;
  const drawn =
    typeof graph === 'object' &&
    graph !== null &&
    [graph.nodes, graph.edges, graph.facts, graph.notes, graph.box].every(Array.isArray) &&
    [graph.width, graph.height].every(Number.isFinite) &&
    graph.nodes.every(({ x, y }) => Number.isFinite(x) && Number.isFinite(y)) &&
    graph.edges.every(({ path, site }) => typeof path === 'string' && typeof site === 'string');
  return drawn ? graph : null;
}

/** The session that a graph was read from. */
export function placeOf({ engine, session }: Graph): Place | null {
  return engine === null || session === null ? null : { engine, session };
}

/** The latest graph of each session: a cell that comes into sight again draws an earlier one once more. */
export type Graphs = ReadonlyMap<string, Graph>;

export const NO_GRAPHS: Graphs = new Map();

export function withGraph(graphs: Graphs, graph: Graph): Graphs {
  const place = placeOf(graph);
  if (place === null) {
    return graphs;
  }
  const before = graphs.get(key(place))?.stop?.edition ?? -1;
  return before > (graph.stop?.edition ?? -1) ? graphs : new Map(graphs).set(key(place), graph);
}

export function graphOf(graphs: Graphs, place: Place | null): Graph | null {
  return (place && graphs.get(key(place))) ?? null;
}
