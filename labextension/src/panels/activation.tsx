/* The present stop: its site, its norms or values by position, the lens, and a thumbnail of the values. */

import * as React from 'react';

import { reasonOf } from '../service/channel';
import { Place, find, isDown } from '../models/live';
import { same } from '../models/choice';
import { IDjinn } from '../tokens';
import { spellNumber, spellShare, spellToken } from '../models/spell';
import { LensRow, LiveEngine, LiveSession, Paused, Pooled } from '../wire';
import { Edits } from './edits';
import { Empty, Meter, Refused, useInSight } from './parts';
import { PanelProps, Trans, useModel } from './react';
import { Picture, readPooled, spellStop } from './picture';

/** The number of positions listed, from the end. */
const POSITIONS = 128;

interface Stop {
  readonly place: Place;
  readonly paused: Paused;
  readonly pooled: Pooled;
}

type Read<T> = { readonly value: T } | { readonly refused: string };

/** The values of a session's stop, or why they were not read. */
interface StopRead {
  readonly place: Place;
  readonly read: Read<Stop>;
}

export function Activation({ service, trans }: PanelProps): React.JSX.Element {
  const model = useModel(service);
  const [sight, seen] = useInSight<HTMLDivElement>();
  const { chosen, session } = model;
  const state = session?.described.state;
  const read = useStop(service, seen, chosen, state === 'paused' ? session : null);
  const past = read !== null && 'value' in read && !isPresent(read.value, session);
  const stop = past && session !== null && isAway(session) ? null : read;
  return (
    <div ref={sight} className={`djinn-Activation-body${past ? ' djinn-mod-past' : ''}`}>
      {state !== 'paused' && (state !== 'running' || stop === null) ? (
        <Empty>
          {trans.__('The activation appears here while the chosen session is stopped.')}
        </Empty>
      ) : stop === null && chosen !== null && session !== null && isAway(session) ? (
        <Away place={chosen} service={service} trans={trans} />
      ) : stop === null ? (
        <Empty>
          {isDown(chosen && model.live.engines[chosen.engine])
            ? trans.__('The activation is read when the line is back.')
            : trans.__('Reading the activation.')}
        </Empty>
      ) : 'refused' in stop ? (
        <p className="djinn-Notice djinn-mod-bad">{stop.refused}</p>
      ) : (
        <StopView stop={stop.value} past={past} service={service} trans={trans} />
      )}
    </div>
  );
}

/** Whether the values are the present stop's; values of another stop, or from before an edit, are shown as past. */
function isPresent({ paused }: Stop, session: LiveSession | null): boolean {
  const there = session?.described.stop ?? null;
  return there !== null && spellStop(paused.stop) === spellStop(there);
}

/** Reading would bring the session back to the device, which is the person's decision. */
function isAway({ described }: LiveSession): boolean {
  return described.residency !== 'resident';
}

function Away({ place, service, trans }: PanelProps & { place: Place }): React.JSX.Element {
  return (
    <div className="djinn-Empty djinn-soft">
      <p>{trans.__('The session has left the device. Its activation is read when it is back.')}</p>
      <button className="djinn-textButton" onClick={() => service.swap(place, 'in')}>
        {trans.__('Bring it back')}
      </button>
      <Refused subject={{ ...place, about: 'swap' }} service={service} trans={trans} />
    </div>
  );
}

/** Changes whenever the stop may have changed: by a move or an edit. Null if there is nothing to read. */
export function standing(session: LiveSession | null): string | null {
  if (session === null || isAway(session)) {
    return null;
  }
  const { stop } = session.described;
  return stop === null ? null : spellStop(stop);
}

/** Read again when the session's stop changes. The earlier values stay until then. */
function useStop(
  service: IDjinn,
  seen: boolean,
  place: Place | null,
  stopped: LiveSession | null
): Read<Stop> | null {
  const [last, setLast] = React.useState<StopRead | null>(null);
  const { engine, session } = place ?? {};
  const stands = standing(stopped);
  React.useEffect(() => {
    let wanted = true;
    if (seen && place !== null && stands !== null) {
      readStop(service, place).then(
        value => wanted && value && setLast({ place, read: { value } }),
        error => wanted && setLast({ place, read: { refused: reasonOf(error) } })
      );
    }
    return () => {
      wanted = false;
    };
  }, [service, seen, engine, session, stands]);
  return last && same(last.place, place) ? last.read : null;
}

/** Null if the session moved or was edited between the two requests: then it is read again. */
async function readStop(service: IDjinn, place: Place): Promise<Stop | null> {
  const { engine, session } = place;
  const paused = await service.sendRequest<'ReadStop'>(engine, { request: 'ReadStop', session });
  const pooled = await readPooled(service, place, paused);
  return spellStop(pooled.stop) === spellStop(paused.stop) ? { place, paused, pooled } : null;
}

interface StopProps extends PanelProps {
  readonly stop: Stop;
}

interface StopViewProps extends StopProps {
  /** The session has moved on; this is its last stop. */
  readonly past: boolean;
}

function StopView({ stop, past, service, trans }: StopViewProps): React.JSX.Element {
  const { paused } = stop;
  const last = paused.positions.at(-1) ?? 0;
  const [chosen, setChosen] = React.useState<number | null>(null);
  const position = chosen !== null && paused.positions.includes(chosen) ? chosen : last;
  return (
    <>
      <p className="djinn-Stop-head">
        <span className="djinn-Stop-session">{labelOf(stop, service)}</span>{' '}
        <span className="djinn-mono">{paused.site}</span>{' '}
        <span className="djinn-soft">{headOf(stop, past, trans)}</span>
      </p>
      {paused.influences.edits.length > 0 && (
        <Edits paused={paused} place={stop.place} past={past} service={service} trans={trans} />
      )}
      <Picture {...stop} past={past} service={service} trans={trans} />
      <Norms paused={paused} position={position} choose={setChosen} trans={trans} />
      {hasLens(paused, service.model.engine) ? (
        <Lens stop={stop} past={past} position={position} service={service} trans={trans} />
      ) : (
        <Empty>
          {trans.__('The logit lens reads the residual stream; %1 is none.', paused.site)}
        </Empty>
      )}
    </>
  );
}

/** A request without one would be refused, and the browser would log that as an error. */
function hasLens({ axes, shape }: Paused, engine: LiveEngine | null): boolean {
  return axes === 'T D' && shape.at(-1) === engine?.found.description?.hidden_size;
}

/** Names the session shown, because keys and buttons move it. */
function labelOf({ place }: Stop, service: IDjinn): string {
  return find(service.model.live, place)?.label ?? place.session;
}

function headOf({ paused, pooled }: Stop, past: boolean, trans: Trans): string {
  const parts = [
    ...(past ? [trans.__('where it stood')] : []),
    paused.step === 0 ? trans.__('prompt') : trans.__('step %1', paused.step),
    `[${paused.shape.join(', ')}] ${paused.dtype}`,
    ...(pooled.exactness === 'exact' ? [] : [pooled.exactness])
  ];
  return parts.join(' \u00b7 ');
}

interface NormsProps {
  readonly paused: Paused;
  readonly position: number;
  readonly choose: (position: number) => void;
  readonly trans: Trans;
}

function Norms({ paused, position, choose, trans }: NormsProps): React.JSX.Element {
  const { values } = paused; // a position's single number is shown unchanged
  const numbers = values ?? paused.norms;
  const largest = Math.max(...numbers.map(one => Math.abs(one ?? 0))) || 1;
  const first = Math.max(0, paused.positions.length - POSITIONS);
  return (
    <div
      className="djinn-Norms"
      role="group"
      aria-label={values ? trans.__('Values by position') : trans.__('Norms by position')}
    >
      <table className="djinn-table">
        <thead>
          <tr>
            <th>{trans.__('position')}</th>
            <th>{trans.__('token')}</th>
            <th colSpan={2}>{values ? trans.__('value') : trans.__('norm')}</th>
          </tr>
        </thead>
        <tbody>
          {paused.positions.slice(first).map((at, index) => (
            <tr key={at} className={at === position ? 'djinn-mod-chosen' : ''}>
              <td className="djinn-number">
                <button
                  className="djinn-linkButton"
                  aria-pressed={at === position}
                  aria-label={trans.__('Read the lens at position %1', at)}
                  onClick={() => choose(at)}
                >
                  {at}
                </button>
              </td>
              <td className="djinn-mono djinn-token">{spellToken(paused.texts[at] ?? '')}</td>
              <td>
                <Meter share={Math.abs(numbers[first + index] ?? 0) / largest} />
              </td>
              <td className="djinn-number">
                {spellNumber(numbers[first + index], trans.__('not finite'))}
              </td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

interface LensProps extends StopViewProps {
  readonly position: number;
}

function Lens({ stop, past, position, service, trans }: LensProps): React.JSX.Element {
  const read = useLens(service, stop, position, past);
  return (
    <div className="djinn-Lens" role="group" aria-label={trans.__('Logit lens')}>
      <h4 className="djinn-subhead">{trans.__('Logit lens at position %1', position)}</h4>
      {read === null ? (
        !past && <Empty>{trans.__('Reading the lens.')}</Empty>
      ) : 'refused' in read ? (
        <Empty>{read.refused}</Empty>
      ) : (
        <table className="djinn-table">
          <tbody>
            {read.value.top.map(({ token, text, probability }) => (
              <tr key={token}>
                <td className="djinn-mono djinn-token">{spellToken(text)}</td>
                <td>
                  <Meter share={probability ?? 0} />
                </td>
                <td className="djinn-number">{spellShare(probability ?? 0)}</td>
              </tr>
            ))}
          </tbody>
        </table>
      )}
    </div>
  );
}

/** The lens at a position of this stop; null until it arrives, and for a past stop. */
function useLens(
  service: IDjinn,
  stop: Stop,
  position: number,
  past: boolean
): Read<LensRow> | null {
  const [last, setLast] = React.useState<{ of: string; read: Read<LensRow> } | null>(null);
  const of = `${spellStop(stop.paused.stop)} ${position}`;
  React.useEffect(() => {
    let wanted = true;
    const { engine, session } = stop.place;
    const top = service.model.preferences.lensTop;
    if (past) {
      return;
    }
    service
      .sendRequest<'Lens'>(engine, { request: 'Lens', session, positions: [position], top })
      .then(
        ({ rows, stop: from }) =>
          wanted &&
          spellStop(from) === spellStop(stop.paused.stop) &&
          setLast({ of, read: { value: rows[0] } }),
        error => wanted && setLast({ of, read: { refused: reasonOf(error) } })
      );
    return () => {
      wanted = false;
    };
  }, [service, stop, position, past]);
  return last?.of === of ? last.read : null;
}
