/* The stops of the chosen session and its forks, as a tree, with buttons that go to a stop. */

import * as React from 'react';

import { BranchRow, Holding, familyRows } from '../models/branches';
import { Place, find } from '../models/live';
import { aboutStop } from '../models/refusals';
import { IDjinn } from '../tokens';
import { Branch, LiveEngine, StopDescription } from '../wire';
import { Empty, Refused, useInSight } from './parts';
import { PanelProps, Trans, useModel } from './react';

const INDENT = 12;

export function Stops({ service, trans }: PanelProps): React.JSX.Element {
  const [sight, seen] = useInSight<HTMLDivElement>();
  const { chosen, engine } = useModel(service);
  const [picked, pick] = React.useState<string | null>(null);
  const branches = useBranches(service, seen, chosen?.engine ?? null, engine);
  const rows = chosen === null ? [] : familyRows(branches, chosen.session);
  return (
    <div ref={sight} className="djinn-Stops-body">
      {chosen === null || !rows.some(({ kind }) => kind === 'stop') ? (
        <Empty>{trans.__('The stops of the chosen session, and its forks, appear here.')}</Empty>
      ) : (
        <ul className="djinn-list" aria-label={trans.__('Stops and forks')}>
          {rows.map(row =>
            row.kind === 'session' ? (
              <Session
                key={row.branch.session}
                row={row}
                engine={chosen.engine}
                service={service}
                trans={trans}
              />
            ) : (
              <Stop
                key={row.id}
                row={row}
                engine={chosen.engine}
                picked={picked === row.id}
                pick={pick}
                service={service}
                trans={trans}
              />
            )
          )}
        </ul>
      )}
    </div>
  );
}

/** Read again whenever a session of the engine changes its stop, or one is opened or closed. */
function useBranches(
  service: IDjinn,
  seen: boolean,
  engine: string | null,
  live: LiveEngine | null
): readonly Branch[] {
  const [last, setLast] = React.useState<{ engine: string; branches: readonly Branch[] } | null>(
    null
  );
  const stands = JSON.stringify(
    Object.entries(live?.sessions ?? {}).map(([name, { described }]) => [name, described.stop])
  );
  React.useEffect(() => {
    let wanted = true;
    if (seen && engine !== null) {
      service.sendRequest<'ReadTree'>(engine, { request: 'ReadTree' }).then(
        ({ branches }) => wanted && setLast({ engine, branches }),
        () => wanted && setLast(null) // the notices above show the engine's error
      );
    }
    return () => {
      wanted = false;
    };
  }, [service, seen, engine, stands]);
  return last !== null && last.engine === engine ? last.branches : [];
}

interface RowProps<Kind extends BranchRow['kind']> extends PanelProps {
  readonly row: Extract<BranchRow, { kind: Kind }>;
  readonly engine: string;
}

function Session({ row, engine, service, trans }: RowProps<'session'>): React.JSX.Element {
  const { branch, depth } = row;
  const place = { engine, session: branch.session };
  const label = labelOf(service, place);
  return (
    <li className="djinn-Stops-row" style={{ paddingLeft: INDENT * depth }}>
      <button
        className="djinn-Stops-main"
        aria-label={trans.__('Show session %1', label)}
        title={branch.text}
        onClick={() => service.model.choose(place)}
      >
        <span className={`djinn-dot djinn-mod-${branch.state}`} aria-hidden="true" />
        <span className="djinn-Stops-session">{label}</span>
        <span className="djinn-soft djinn-Stops-facts" title={trailOf(branch, trans)}>
          {trailOf(branch, trans)}
        </span>
      </button>
    </li>
  );
}

function trailOf({ dropped, tokens }: Branch, trans: Trans): string {
  const length = trans._n('%1 token', '%1 tokens', tokens);
  return dropped > 0
    ? `${length} \u00b7 ${trans._n('%1 older stop gone', '%1 older stops gone', dropped)}`
    : length;
}

interface StopProps extends RowProps<'stop'> {
  readonly picked: boolean;
  readonly pick: (id: string | null) => void;
}

function Stop({ row, picked, pick, ...props }: StopProps): React.JSX.Element {
  const { trans } = props;
  const here = row.held.filter(({ back, branch }) => back === 0 && branch.present !== null);
  const names = here.map(({ branch }) =>
    labelOf(props.service, { engine: props.engine, session: branch.session })
  );
  const said = [placeOf(row.stop, trans), ...names.map(name => trans.__('%1 stands here', name))];
  return (
    <li className="djinn-Stops-row" style={{ paddingLeft: INDENT * (row.depth + 1) }}>
      <button
        className={`djinn-Stops-main djinn-Stops-stop${here.length ? ' djinn-mod-stop' : ''}`}
        aria-expanded={picked}
        aria-label={said.join(', ')}
        onClick={() => pick(picked ? null : row.id)}
      >
        <span className="djinn-mono">{row.stop.site}</span>
        <span className="djinn-soft djinn-Stops-facts" title={factsOf(row.stop, names, trans)}>
          {factsOf(row.stop, names, trans)}
        </span>
      </button>
      {picked && (
        <div className="djinn-Stops-ways">
          {row.held.map(holding => (
            <Way
              key={holding.branch.session}
              holding={holding}
              to={row.stop}
              done={() => pick(null)}
              {...props}
            />
          ))}
          {row.held.some(({ back, branch }) => back && branch.state !== 'running') && (
            <p className="djinn-soft">
              {trans.__(
                'What came after is dropped when the session goes on from here; fork it first to keep both.'
              )}
            </p>
          )}
        </div>
      )}
      {row.held.map(({ branch: { session } }) => (
        <Refused
          key={session}
          subject={{ engine: props.engine, session, about: aboutStop(row.stop) }}
          {...props}
        />
      ))}
    </li>
  );
}

function placeOf({ site, step }: StopDescription, trans: Trans): string {
  return `${site}, ${step === 0 ? trans.__('prompt') : trans.__('step %1', step)}`;
}

function factsOf(stop: StopDescription, names: readonly string[], trans: Trans): string {
  return [
    stop.step === 0 ? trans.__('prompt') : trans.__('step %1', stop.step),
    ...(stop.edited ? [trans.__('edited')] : []),
    ...names.map(name => `\u25c0 ${name}`)
  ].join(' \u00b7 ');
}

interface WayProps extends PanelProps {
  readonly holding: Holding;
  readonly to: StopDescription;
  readonly engine: string;
  readonly done: () => void;
}

/** The effect of a click on a session that has this stop, and its button. */
function Way({ holding, to, engine, done, service, trans }: WayProps): React.JSX.Element {
  const { branch, back } = holding;
  const place: Place = { engine, session: branch.session };
  const label = labelOf(service, place);
  if (branch.present !== null && back === 0) {
    const show = (): void => {
      service.model.choose(place);
      done();
    };
    return (
      <p>
        {trans.__('%1 stands here.', label)}{' '}
        <button className="djinn-textButton" onClick={show}>
          {trans.__('Show %1', label)}
        </button>
      </p>
    );
  }
  if (back === null || branch.state === 'running') {
    return (
      <p className="djinn-soft">
        {back === null
          ? trans.__('%1 has gone back before this stop: it comes here by going on.', label)
          : trans.__('%1 runs: pause it to take it back.', label)}
      </p>
    );
  }
  const go = (): void => {
    done();
    void service.backTo(place, to, back, branch.stop);
  };
  return (
    <p>
      {trans._n('Takes %2 back %1 stop.', 'Takes %2 back %1 stops.', back, label)}{' '}
      <button className="djinn-textButton" onClick={go}>
        {trans.__('Take %1 back', label)}
      </button>
    </p>
  );
}

function labelOf(service: IDjinn, place: Place): string {
  return find(service.model.live, place)?.label ?? place.session;
}
