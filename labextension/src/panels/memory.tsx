/* The memory of the chosen session's engine, live: a stacked chart with its budget and swaps, and the numbers below. */

import * as React from 'react';

import { BANDS, Band, Mark, NO_PAST, Reading, shapesOf, spanOf } from '../models/memory';
import { spellBytes, spellSeconds } from '../models/spell';
import { PersonMemory } from '../wire';
import { Empty } from './parts';
import { PanelProps, Trans, useClock, useModel } from './react';

const WIDTH = 300;
const HEIGHT = 110;

export function Memory({ service, trans }: PanelProps): React.JSX.Element {
  const model = useModel(service);
  const now = useClock(1);
  const engine = model.chosen?.engine ?? Object.keys(model.live.engines)[0];
  const past = (engine && model.past(engine)) || NO_PAST;
  const last = past.readings.at(-1);
  if (last === undefined) {
    return <Empty>{trans.__('The memory of an engine appears here while one runs.')}</Empty>;
  }
  const end = Math.max(now, last.at);
  const seconds = spanOf(past, end, 60 * model.preferences.memoryMinutes);
  const shapes = shapesOf(past, end, seconds, WIDTH, HEIGHT);
  return (
    <>
      <svg
        className="djinn-Chart"
        viewBox={`0 0 ${WIDTH} ${HEIGHT}`}
        preserveAspectRatio="none"
        role="img"
        aria-label={sentence(last, trans)}
      >
        {BANDS.map(band => (
          <path key={band} className={`djinn-band-${band}`} d={shapes.paths[band]} />
        ))}
        {shapes.budgetAt !== null && (
          <line
            className="djinn-Chart-budget"
            x1={0}
            x2={WIDTH}
            y1={shapes.budgetAt}
            y2={shapes.budgetAt}
          />
        )}
        {shapes.marks.map(({ x, mark }, index) => (
          <line
            key={index}
            className={`djinn-Chart-swap djinn-mod-${mark.swap.transfer.direction}`}
            x1={x}
            x2={x}
            y1={0}
            y2={HEIGHT}
          >
            <title>{swapText(mark, trans)}</title>
          </line>
        ))}
      </svg>
      <p className="djinn-soft djinn-Chart-axis">
        <span>{trans.__('%1 ago', spellSeconds(seconds))}</span>
        <span>{trans.__('now')}</span>
      </p>
      <Numbers last={last} trans={trans} />
      <People people={last.people} trans={trans} />
      <Swaps marks={past.marks} trans={trans} />
    </>
  );
}

function names(trans: Trans): Record<Band, string> {
  return {
    weights: trans.__('weights'),
    pages: trans.__('keys and values'),
    working: trans.__('working copies'),
    stops: trans.__('stops and states'),
    free: trans.__('pages that are free'),
    others: trans.__('other programs')
  };
}

function Numbers({ last, trans }: { last: Reading; trans: Trans }): React.JSX.Element {
  const named = names(trans);
  const elsewhere: [string, number | null][] = [
    [trans.__('budget'), last.budget],
    [trans.__('in host memory'), last.host],
    [trans.__('on disk'), last.disk]
  ];
  return (
    <table className="djinn-table djinn-Memory-numbers">
      <tbody>
        {BANDS.map(band => (
          <tr key={band}>
            <td>
              <span className={`djinn-swatch djinn-band-${band}`} />
            </td>
            <td>{named[band]}</td>
            <td className="djinn-number">{spellBytes(last.bands[band])}</td>
          </tr>
        ))}
        {elsewhere.map(([name, bytes]) => (
          <tr key={name}>
            <td />
            <td>{name}</td>
            <td className="djinn-number">
              {bytes === null ? trans.__('none set') : spellBytes(bytes)}
            </td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}

/** The memory of each person, if persons with keys share the engine. */
function People({
  people,
  trans
}: {
  people: readonly PersonMemory[];
  trans: Trans;
}): React.JSX.Element | null {
  return people.length === 0 ? null : (
    <table className="djinn-table djinn-Memory-people" aria-label={trans.__('Memory by person')}>
      <thead>
        <tr>
          <th>{trans.__('person')}</th>
          <th className="djinn-number">{trans.__('device')}</th>
          <th className="djinn-number">{trans.__('host')}</th>
          <th className="djinn-number">{trans.__('disk')}</th>
        </tr>
      </thead>
      <tbody>
        {people.map(one => (
          <tr key={one.person ?? ''}>
            <td>{one.person ?? trans.__("the engine's user")}</td>
            {[one.device_bytes, one.host_bytes, one.disk_bytes].map((bytes, index) => (
              <td key={index} className="djinn-number">
                {spellBytes(bytes)}
              </td>
            ))}
          </tr>
        ))}
      </tbody>
    </table>
  );
}

function Swaps({
  marks,
  trans
}: {
  marks: readonly Mark[];
  trans: Trans;
}): React.JSX.Element | null {
  return marks.length === 0 ? null : (
    <ul className="djinn-list djinn-soft djinn-Memory-swaps" aria-label={trans.__('Last swaps')}>
      {marks.slice(-3).map((mark, index) => (
        <li key={index}>{swapText(mark, trans)}</li>
      ))}
    </ul>
  );
}

function swapText({ swap }: Mark, trans: Trans): string {
  const { bytes_moved, direction, tier } = swap.transfer;
  const name = swap.session.split('/').at(-1) ?? swap.session;
  return direction === 'out'
    ? trans.__('%1: %2 to %3', name, spellBytes(bytes_moved), tier)
    : trans.__('%1: %2 back from %3', name, spellBytes(bytes_moved), tier);
}

function sentence(last: Reading, trans: Trans): string {
  const named = names(trans);
  return BANDS.map(band => `${named[band]} ${spellBytes(last.bands[band])}`).join(', ');
}
