/* A graph of edges, in a notebook and in the sidebar: a click on an edge or a node sets a breakpoint there, in the
   session that the graph was read from; a second one takes it away. The rows of the table do the same by keyboard. */

import * as React from 'react';

import { Graph, GraphEdge, GraphNode, graphOf, placeOf } from '../models/graph';
import { find, reached } from '../models/live';
import { IDjinn } from '../tokens';
import { Empty, Refused } from './parts';
import { PanelProps, Trans, useModel } from './react';

interface GraphProps extends PanelProps {
  readonly graph: Graph;
}

/** The edges of the chosen session that this page drew last. */
export function Edges(props: PanelProps): React.JSX.Element {
  const { service, trans } = props;
  const { chosen, graphs } = useModel(service);
  const graph = graphOf(graphs, chosen);
  return graph === null ? (
    <Empty>
      {trans.__('Edges that %djinn_edges reads from the session that is chosen appear here.')}
    </Empty>
  ) : (
    <EdgeGraph {...props} graph={graph} />
  );
}

/** What a click does, and where that is done already. */
interface Stopping {
  readonly can: boolean;
  readonly set: ReadonlyMap<string, number>;
  readonly toggle: (site: string) => void;
}

export function EdgeGraph({ graph, service, trans }: GraphProps): React.JSX.Element {
  const [asked, ask] = React.useState<string | null>(null);
  const [lit, light] = React.useState<number | null>(null);
  const place = placeOf(graph);
  const model = useModel(service);
  const set = new Map(
    find(model.live, place)?.described.breakpoints.map(({ site, number }) => [site, number])
  );
  const stopping: Stopping = {
    can: reached(model.live, place) !== null,
    set,
    toggle: site => {
      if (place !== null) {
        ask(site);
        void toggled(service, place, site, set.get(site));
      }
    }
  };
  const shared = { graph, stopping, lit, light, trans };
  return (
    <div className="djinn-Graph">
      <div className="djinn-Graph-both">
        <Picture {...shared} />
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

function about(site: string): string {
  return `breakpoint at ${site}`;
}

function toggled(
  service: IDjinn,
  place: { engine: string; session: string },
  site: string,
  number: number | undefined
): Promise<void> {
  return number === undefined
    ? service.setBreakpoint(place, site)
    : service.clearBreakpoints(place, [number], about(site));
}

/** What the graph was read from, and what a click on it does or has done. */
function said(
  graph: Graph,
  { model }: IDjinn,
  { can, set }: Stopping,
  asked: string | null,
  trans: Trans
): string {
  const place = placeOf(graph);
  const label = graph.label ?? '';
  if (place === null) {
    return trans.__('Read from lines of no session: a click has no session to stop.');
  }
  if (!can) {
    return trans.__(
      'Read from session %1, which is not there now: a click can stop nothing.',
      label
    );
  }
  const stands = find(model.live, place)?.described.stop ?? null;
  const moved =
    stands !== null && stands.edition !== graph.stop?.edition
      ? ' ' + trans.__('It has moved on since.')
      : '';
  const done =
    asked !== null && set.has(asked)
      ? trans.__('%1 stops at %2 when it next comes there.', label, asked)
      : trans.__('Read from session %1. A click sets a breakpoint there.', label);
  return done + moved;
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

/** An edge with a wider one, unseen, to click on. Its row in the table is the one for the keyboard. */
function Way(
  props: DrawnProps & { readonly edge: GraphEdge; readonly index: number }
): React.JSX.Element {
  const { edge, index, lit, light, stopping, trans } = props;
  const classes = [
    'djinn-Way',
    edge.score > 0 ? 'djinn-mod-up' : 'djinn-mod-down',
    ...(lit === index ? ['djinn-mod-lit'] : []),
    ...(lit !== null && lit !== index ? ['djinn-mod-dim'] : [])
  ];
  return (
    <g
      className={classes.join(' ')}
      onMouseEnter={() => light(index)}
      onMouseLeave={() => light(null)}
      onClick={stopping.can ? () => stopping.toggle(edge.site) : undefined}
    >
      <path d={edge.path} strokeWidth={edge.thickness} />
      <path className="djinn-Way-wide" d={edge.path}>
        <title>{named(edge, trans)}</title>
      </path>
    </g>
  );
}

function named({ writer, reader, text, site }: GraphEdge, trans: Trans): string {
  return trans.__('%1 to %2: %3. Breakpoint at %4', writer, reader, text, site);
}

function Box(props: DrawnProps & { readonly node: GraphNode }): React.JSX.Element {
  const { graph, node, stopping, trans } = props;
  const [width, height] = graph.box;
  const isSet = stopping.set.has(node.site);
  const left = node.x - width / 2;
  const act = (): void => stopping.toggle(node.site);
  return (
    <g
      className={`djinn-Box${isSet ? ' djinn-mod-set' : ''}`}
      role="button"
      tabIndex={stopping.can ? 0 : -1}
      aria-disabled={!stopping.can}
      aria-pressed={isSet}
      aria-label={trans.__('Breakpoint at %1', node.site)}
      onClick={stopping.can ? act : undefined}
      onKeyDown={event => {
        if (stopping.can && (event.key === 'Enter' || event.key === ' ')) {
          event.preventDefault();
          event.stopPropagation();
          act();
        }
      }}
    >
      <title>{trans.__('Breakpoint at %1', node.site)}</title>
      <rect x={left} y={node.y} width={width} height={height} rx={4} />
      {node.ports &&
        ['q', 'k', 'v'].map((port, index) => (
          <text key={port} className="djinn-Box-port" x={node.x - 15 + 15 * index} y={node.y + 9}>
            {port}
          </text>
        ))}
      <text x={node.x} y={node.y + (node.ports ? 21 : 17)}>
        {node.label}
      </text>
      {isSet && <circle cx={left} cy={node.y} r={4} />}
    </g>
  );
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
                className={`djinn-Graph-dot${stopping.set.has(edge.site) ? ' djinn-mod-set' : ''}`}
                aria-label={named(edge, trans)}
                title={trans.__('Breakpoint at %1', edge.site)}
                aria-pressed={stopping.set.has(edge.site)}
                disabled={!stopping.can}
                onFocus={() => light(index)}
                onBlur={() => light(null)}
                onClick={() => stopping.toggle(edge.site)}
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
