/* A graph of edges, in a notebook and in the sidebar. A click on an edge or a node sets a breakpoint there, in the
   graph's source session, or in the chosen one without it; a second click removes it. The rows of the table do the same
   by keyboard. */

import * as React from 'react';

import {
  Graph,
  GraphEdge,
  GraphNode,
  GraphPort,
  Stop,
  graphsOf,
  nameOf,
  placeOf,
  stopAt,
  targetOf
} from '../models/graph';
import { same } from '../models/choice';
import { Place, find } from '../models/live';
import { IDjinn } from '../tokens';
import { Empty, Refused } from './parts';
import { PanelProps, Trans, useModel } from './react';

interface GraphProps extends PanelProps {
  readonly graph: Graph;
}

/** The graphs whose clicks stop the chosen session, the latest first; one of them is shown. */
export function Edges(props: PanelProps): React.JSX.Element {
  const { service, trans } = props;
  const { chosen, graphs, live } = useModel(service);
  const [wanted, want] = React.useState<string | null>(null);
  const found = graphsOf(graphs, live, chosen);
  if (found.length === 0) {
    return <Empty>{trans.__('The graphs of this session in open notebooks appear here.')}</Empty>;
  }
  const graph = found.find(one => nameOf(one) === wanted) ?? found[0];
  return (
    <>
      {found.length > 1 && (
        <select
          className="djinn-Graph-choice"
          aria-label={trans.__('Graph')}
          value={nameOf(graph)}
          onChange={({ target }) => want(target.value)}
        >
          {found.map(one => (
            <option key={nameOf(one)} value={nameOf(one)}>
              {trans.__('%1, %2: %3', one.kind, one.how, one.metric)}
            </option>
          ))}
        </select>
      )}
      <EdgeGraph key={nameOf(graph)} {...props} graph={graph} />
    </>
  );
}

/** The session that a click stops, null without one, and the breakpoints already set there. */
interface Stopping {
  readonly place: Place | null;
  readonly set: ReadonlyMap<string, number>;
  readonly toggle: (stop: Stop) => void;
}

export function EdgeGraph({ graph, service, trans }: GraphProps): React.JSX.Element {
  const [asked, ask] = React.useState<string | null>(null);
  const [lit, light] = React.useState<number | null>(null);
  const { live, chosen } = useModel(service);
  const place = targetOf(graph, live, chosen);
  const set = new Map(
    find(live, place)?.described.breakpoints.flatMap(({ site, when, number }) => [
      [site, number] as const,
      [stopAt({ site, when }), number] as const
    ])
  );
  const stopping: Stopping = {
    place,
    set,
    toggle: stop => {
      if (place !== null) {
        ask(stopAt(stop));
        void toggled(service, place, stop, set.get(stopAt(stop)));
      }
    }
  };
  const shared = { graph, stopping, lit, light, trans };
  return (
    <div className="djinn-Graph">
      <div className="djinn-Graph-both">
        <div className="djinn-Graph-drawn">
          <Picture {...shared} />
          <Legend graph={graph} />
        </div>
        <Table {...shared} />
      </div>
      <p className="djinn-soft djinn-Graph-said" role="status">
        {said(graph, service, stopping, asked, trans)}
      </p>
      {place !== null && asked !== null && (
        <Refused subject={{ ...place, about: about(asked) }} service={service} trans={trans} />
      )}
    </div>
  );
}

function about(stop: string): string {
  return `breakpoint at ${stop}`;
}

function toggled(
  service: IDjinn,
  place: Place,
  stop: Stop,
  number: number | undefined
): Promise<void> {
  return number === undefined
    ? service.setBreakpoint(place, stop.site, stop.when ?? null)
    : service.clearBreakpoints(place, [number], about(stopAt(stop)));
}

/** The source of the graph, and the effect of a click. */
function said(
  graph: Graph,
  { model }: IDjinn,
  { place, set }: Stopping,
  asked: string | null,
  trans: Trans
): string {
  const session = find(model.live, place);
  const own = place !== null && same(place, placeOf(graph));
  if (session === null) {
    return [from(graph, trans), trans.__('Choose a session of its model to stop there.')].join(' ');
  }
  if (asked !== null && set.has(asked)) {
    return trans.__('%1 stops at %2 when it next comes there.', session.label, asked);
  }
  if (!own) {
    const does = trans.__(
      'A click sets a breakpoint in session %1, the chosen one.',
      session.label
    );
    return [from(graph, trans), does].join(' ');
  }
  const { stop } = session.described;
  const moved = stop !== null && stop.edition !== graph.stop?.edition;
  return [
    trans.__('Read from session %1. A click sets a breakpoint there.', session.label),
    ...(moved ? [trans.__('It has moved on since.')] : [])
  ].join(' ');
}

/** The source of a graph, if that is no present session. */
function from({ label }: Graph, trans: Trans): string {
  return label === null
    ? trans.__('Read from lines of no session.')
    : trans.__('Read from session %1, which is not there now.', label);
}

interface DrawnProps {
  readonly graph: Graph;
  readonly stopping: Stopping;
  readonly lit: number | null;
  readonly light: (edge: number | null) => void;
  readonly trans: Trans;
}

function Picture(props: DrawnProps): React.JSX.Element {
  const { graph, trans } = props;
  const { width, height } = graph;
  return (
    <div className="djinn-Graph-picture">
      <svg
        viewBox={`0 0 ${width} ${height}`}
        width={width}
        height={height}
        role="group"
        aria-label={trans.__('Edges of %1', graph.metric)}
      >
        {graph.edges.map((edge, index) => (
          <Way key={index} {...props} edge={edge} index={index} />
        ))}
        {graph.nodes.map((node, index) => (
          <Box key={index} {...props} node={node} />
        ))}
      </svg>
    </div>
  );
}

/** What edges mean, and the shapes of nodes of several kinds. */
function Legend({ graph }: { readonly graph: Graph }): React.JSX.Element {
  return (
    <p className="djinn-soft djinn-Graph-legend">
      {graph.legend !== undefined && <span>{graph.legend}</span>}
      {(graph.kinds ?? []).map(([kind, meaning]) => (
        <span key={kind}>
          <svg className={`djinn-Box djinn-kind-${kind}`} width={30} height={15} aria-hidden={true}>
            <rect x={2} y={2} width={26} height={11} rx={3} />
          </svg>
          {meaning}
        </span>
      ))}
    </p>
  );
}

/** An edge with a wider, invisible one to click on. The keyboard uses its row in the table. */
function Way(
  props: DrawnProps & { readonly edge: GraphEdge; readonly index: number }
): React.JSX.Element {
  const { edge, index, lit, light, stopping, trans } = props;
  const classes = [
    'djinn-Way',
    edge.score > 0 ? 'djinn-mod-up' : 'djinn-mod-down',
    ...(edge.rises ? ['djinn-mod-rises'] : []),
    ...(lit === index ? ['djinn-mod-lit'] : []),
    ...(lit !== null && lit !== index ? ['djinn-mod-dim'] : [])
  ];
  return (
    <g
      className={classes.join(' ')}
      onMouseEnter={() => light(index)}
      onMouseLeave={() => light(null)}
      onClick={stopping.place && edge.site ? () => stopping.toggle(edge) : undefined}
    >
      <path d={edge.path} strokeWidth={edge.thickness} />
      <path className="djinn-Way-wide" d={edge.path}>
        <title>{named(edge, trans)}</title>
      </path>
    </g>
  );
}

function named(edge: GraphEdge, trans: Trans): string {
  const { writer, reader, text } = edge;
  if (!edge.site) {
    return trans.__('%1 to %2: %3', writer, reader, text);
  }
  return trans.__('%1 to %2: %3. Breakpoint at %4', writer, reader, text, stopAt(edge));
}

function Box(props: DrawnProps & { readonly node: GraphNode }): React.JSX.Element {
  const { graph, node, stopping, trans } = props;
  const [width, height] = graph.box;
  const isSet = stopping.set.has(stopAt(node));
  const within = node.ports.filter(({ site }) => site !== node.site && stopping.set.has(site));
  const named = node.ports.filter(({ label }) => label);
  const left = node.x - width / 2;
  const stops = stopping.place !== null && node.site !== '';
  const act = (): void => stopping.toggle(node);
  return (
    <g
      className={`djinn-Box${node.kind ? ` djinn-kind-${node.kind}` : ''}${isSet ? ' djinn-mod-set' : within.length ? ' djinn-mod-within' : ''}`}
      role="button"
      tabIndex={stops ? 0 : -1}
      aria-disabled={!stops}
      aria-pressed={isSet}
      aria-label={spelled(node, within, trans)}
      onClick={stops ? act : undefined}
      onKeyDown={event => {
        if (stops && (event.key === 'Enter' || event.key === ' ')) {
          event.preventDefault();
          event.stopPropagation();
          act();
        }
      }}
    >
      <title>
        {[...(node.site && node.title ? [node.title] : []), spelled(node, within, trans)].join(
          '\n'
        )}
      </title>
      <rect x={left} y={node.y} width={width} height={height} rx={4} />
      {named.map(({ label, site, x }) => (
        <text
          key={site}
          className={`djinn-Box-port${stopping.set.has(site) ? ' djinn-mod-set' : ''}`}
          x={x}
          y={node.y + 9}
        >
          {label}
        </text>
      ))}
      <text x={node.x} y={node.y + (named.length ? 21 : 17)}>
        {node.label}
      </text>
      {isSet && <circle cx={left} cy={node.y} r={4} />}
      {within.map(({ site, x }) => (
        <circle key={site} className="djinn-Box-within" cx={x} cy={node.y} r={3} />
      ))}
    </g>
  );
}

/** The breakpoint that a click on a node sets, and the breakpoints where edges enter it. */
function spelled(node: GraphNode, within: readonly GraphPort[], trans: Trans): string {
  if (node.site === '') {
    return node.title ?? node.label;
  }
  return [
    trans.__('Breakpoint at %1', stopAt(node)),
    ...within.map(port => trans.__('there is one at %1', port.site))
  ].join(', ');
}

function Table({ graph, stopping, lit, light, trans }: DrawnProps): React.JSX.Element {
  const exact = graph.edges.some(edge => edge.exact);
  const heads = ['', trans.__('writer'), trans.__('reader'), trans.__('score')];
  if (exact) {
    heads.push(trans.__('exact'));
  }
  return (
    <table className="djinn-Graph-table">
      <thead>
        <tr>
          {heads.map(name => (
            <th key={name} scope="col">
              {name}
            </th>
          ))}
        </tr>
      </thead>
      <tbody>
        {graph.edges.map((edge, index) => (
          <tr
            key={index}
            className={lit === index ? 'djinn-mod-lit' : undefined}
            onMouseEnter={() => light(index)}
            onMouseLeave={() => light(null)}
          >
            <td>
              <button
                className={`djinn-Graph-dot${stopping.set.has(stopAt(edge)) ? ' djinn-mod-set' : ''}`}
                aria-label={named(edge, trans)}
                title={edge.site && trans.__('Breakpoint at %1', stopAt(edge))}
                aria-pressed={stopping.set.has(stopAt(edge))}
                disabled={!stopping.place || !edge.site}
                onFocus={() => light(index)}
                onBlur={() => light(null)}
                onClick={() => stopping.toggle(edge)}
              />
            </td>
            <td className="djinn-mono">{edge.writer}</td>
            <td className="djinn-mono">{edge.reader}</td>
            <td className="djinn-Graph-score">{edge.text}</td>
            {exact && <td className="djinn-Graph-score">{edge.exact}</td>}
          </tr>
        ))}
      </tbody>
    </table>
  );
}
