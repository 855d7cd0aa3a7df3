/* A graph of edges from a kernel, the graphs that this page knows, and the breakpoint of a click. Pure. */

import { LiveState, Place, reached } from './live';
import { same } from './choice';

/** The MIME type of the kernel's graphs. */
export const GRAPH_TYPE = 'application/vnd.djinn.edges+json';

/** The site and condition of the breakpoint that a click sets. */
export interface Stop {
  readonly site: string;
  readonly when?: string | null;
}

/** The name of a breakpoint. */
export function stopAt({ site, when }: Stop): string {
  return when ? `${site} when ${when}` : site;
}

/** A place on the upper side of a node where edges enter; without a label if it is the node's only one. */
export interface GraphPort extends Stop {
  readonly label: string;
  readonly x: number;
}

export interface GraphNode extends Stop {
  readonly label: string;
  /** Its middle, and its upper side. */
  readonly x: number;
  readonly y: number;
  readonly ports: readonly GraphPort[];
  /** Its kind, where a graph has several; drawn by its own shape. */
  readonly kind?: string;
  /** In full, for the pointer. */
  readonly title?: string | null;
}

export interface GraphEdge extends Stop {
  readonly writer: string;
  readonly reader: string;
  readonly score: number;
  readonly text: string;
  /** The exact change, empty where the edge was not patched. */
  readonly exact: string;
  readonly thickness: number;
  readonly path: string;
  /** It runs from a lower row up to a higher one. */
  readonly rises?: boolean;
}

/**
 * `kind` is the noun of the result. `engine`, `session` and `stop` are its source, null if that was no session of an
 * engine's process; `model` is the name of the model, null if unknown.
 */
export interface Graph {
  readonly kind: string;
  readonly engine: string | null;
  readonly model: string | null;
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
  /** What colours and widths of edges mean, and the kinds of nodes with their meaning. */
  readonly legend?: string;
  readonly kinds?: readonly (readonly [string, string])[];
  readonly nodes: readonly GraphNode[];
  readonly edges: readonly GraphEdge[];
}

/** The graph in a bundle; null if a file has something else under its type. */
export function asGraph(data: unknown): Graph | null {
  const graph = data as Graph | null;
  const drawn =
    typeof graph === 'object' &&
    graph !== null &&
    [graph.nodes, graph.edges, graph.facts, graph.notes, graph.box].every(Array.isArray) &&
    [graph.width, graph.height].every(Number.isFinite) &&
    typeof graph.kind === 'string' &&
    graph.nodes.every(
      ({ x, y, ports }) => Number.isFinite(x) && Number.isFinite(y) && Array.isArray(ports)
    ) &&
    graph.edges.every(({ path, site }) => typeof path === 'string' && typeof site === 'string');
  return drawn ? graph : null;
}

/** The source session of a graph. */
export function placeOf({ engine, session }: Graph): Place | null {
  return engine === null || session === null ? null : { engine, session };
}

/** The session that a click on a graph stops: its source, or without one the chosen session, if its engine is the
    graph's or has the same model. */
export function targetOf(graph: Graph, live: LiveState, chosen: Place | null): Place | null {
  const own = placeOf(graph);
  if (own !== null && reached(live, own) !== null) {
    return own;
  }
  return chosen !== null && reached(live, chosen) !== null && fits(graph, live, chosen.engine)
    ? chosen
    : null;
}

function fits({ engine, model }: Graph, { engines }: LiveState, id: string): boolean {
  const name = engines[id]?.found.description?.name;
  return id === engine || (model !== null && model === name);
}

/** The graphs that this page knows. A cell that comes into sight again draws its graph again. */
export type Graphs = readonly Graph[];

export const NO_GRAPHS: Graphs = [];
const MOST_GRAPHS = 32;

/** Add a graph at the end, but before later ones of the same session. */
export function withGraph(graphs: Graphs, graph: Graph): Graphs {
  const name = nameOf(graph);
  if (graphs.some(one => nameOf(one) === name)) {
    return graphs;
  }
  const later = graphs.findIndex(
    one => same(placeOf(one), placeOf(graph)) && edition(one) > edition(graph)
  );
  const at = later < 0 ? graphs.length : later;
  return [...graphs.slice(0, at), graph, ...graphs.slice(at)].slice(-MOST_GRAPHS);
}

function edition({ stop }: Graph): number {
  return stop?.edition ?? -1;
}

/** The identity of a graph. */
export function nameOf({ kind, engine, session, stop, metric, how, facts, edges }: Graph): string {
  const ends = edges.map(({ writer, reader, score }) => [writer, reader, score]);
  return JSON.stringify([kind, engine, session, stop, metric, how, facts, ends]);
}

/** The graphs of this session, or whose clicks stop it; the latest first. */
export function graphsOf(graphs: Graphs, live: LiveState, chosen: Place | null): Graphs {
  const belongs = (graph: Graph): boolean =>
    same(placeOf(graph), chosen) || same(targetOf(graph, live, chosen), chosen);
  return chosen === null ? [] : graphs.filter(belongs).reverse();
}
