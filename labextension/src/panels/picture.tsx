/* The values of a stop as a heatmap, pooled by the engine; with heads one at a time, or their mean. */

import * as React from 'react';

import { hasHeads, headKept, headsOf, siteOfHead } from '../models/heads';
import { Place } from '../models/live';
import { acrossOf, pictureOf } from '../models/picture';
import { spellNumber } from '../models/spell';
import { reasonOf } from '../service/channel';
import { IDjinn } from '../tokens';
import { Paused, Pooled, StopIdentity } from '../wire';
import { Trans } from './react';
import { Thumbnail } from './thumbnail';

/** The number of cells for which the panel has pixels. */
const CELLS = { rows: 96, columns: 128 } as const;

/** The stopped value, or the mean of its heads; at a site of one head, that head. The mean comes with each head, in so
    many cells altogether, so that a head can be chosen when the session has moved on. */
export async function readPooled(
  service: IDjinn,
  { engine, session }: Place,
  paused: Paused,
  site: string | null = null
): Promise<Pooled> {
  const mean_of_heads = hasHeads(paused);
  const { pooled } = await service.sendRequest<'ReadPooled'>(engine, {
    request: 'ReadPooled',
    session,
    site,
    mean_of_heads,
    heads: mean_of_heads && site === null ? CELLS.rows * CELLS.columns : 0,
    ...CELLS
  });
  return pooled;
}

/** Changes whenever the stop may have changed: by a move or an edit. */
export function spellStop({ session, number, edition }: StopIdentity): string {
  return `${session} ${number} ${edition}`;
}

interface PictureProps {
  readonly place: Place;
  readonly paused: Paused;
  readonly pooled: Pooled;
  /** The session has moved on: its other heads are those that came with the mean. */
  readonly past: boolean;
  readonly service: IDjinn;
  readonly trans: Trans;
}

export function Picture(props: PictureProps): React.JSX.Element {
  const { paused, pooled, trans } = props;
  const [wanted, want] = React.useState<number | null>(null);
  const heads = headsOf(pooled);
  const asked = wanted !== null && heads.includes(wanted) ? wanted : null;
  const { head, drawn, refused } = useHead(props, asked);
  const picture = React.useMemo(() => pictureOf(drawn), [drawn]);
  const mean = trans._n('mean of %1 head', 'mean of %1 heads', heads.length);
  const named = heads.length === 1 ? heads[0] : head;
  const which = heads.length ? ` (${named === null ? mean : trans.__('head %1', named)})` : '';
  return (
    <>
      {heads.length > 1 && (
        <label className="djinn-Heads">
          {trans.__('Heads')}
          <select
            value={asked ?? ''}
            onChange={({ target }) => want(target.value === '' ? null : Number(target.value))}
          >
            <option value="">{mean}</option>
            {heads.map(one => (
              <option key={one} value={one}>
                {trans.__('head %1', one)}
              </option>
            ))}
          </select>
        </label>
      )}
      {refused !== null && <p className="djinn-Notice djinn-mod-bad">{refused}</p>}
      <Thumbnail
        picture={picture}
        label={trans.__(
          'Values at %1: %2 positions by %3. Full colour at %4.',
          paused.site + which,
          drawn.positions.length,
          acrossOf(drawn).join(' x '),
          spellNumber(picture.limit, trans.__('not finite'))
        )}
        made={madeOf(drawn, trans)}
        trans={trans}
      />
    </>
  );
}

/** How the picture differs from the values, and what it omits; empty if each value has a pixel. */
function madeOf(pooled: Pooled, trans: Trans): readonly string[] {
  const { rows_per_cell: down, columns_per_cell: across, cells, dtype, not_finite } = pooled;
  return [
    ...(down > 1 ? [trans.__('%1 positions a row', down)] : []),
    ...(across > 1 ? [trans.__('%1 values a column', across)] : []),
    ...(down * across > 1 ? [trans.__('the largest of them drawn')] : []),
    ...(cells.dtype === dtype ? [] : [trans.__('%1 rounded to %2', dtype, cells.dtype)]),
    ...(not_finite === 0 ? [] : [trans.__('%1 not finite', not_finite)])
  ];
}

interface Head {
  /** Null for the mean of all, or without heads. */
  readonly head: number | null;
  readonly drawn: Pooled;
  readonly refused: string | null;
}

/** The requested head of this stop; until it arrives, or if it is refused, the mean of all. For a past stop it is the
    one that came with the mean, unless it was read before. */
function useHead(
  { service, place, paused, pooled, past }: PictureProps,
  asked: number | null
): Head {
  const [last, setLast] = React.useState<{ of: Pooled; read: Head } | null>(null);
  const all = { head: null, drawn: pooled, refused: null };
  React.useEffect(() => {
    let wanted = true;
    if (asked !== null && !past) {
      readPooled(service, place, paused, siteOfHead(pooled.site, asked)).then(
        drawn =>
          wanted &&
          spellStop(drawn.stop) === spellStop(pooled.stop) &&
          setLast({ of: pooled, read: { head: asked, drawn, refused: null } }),
        error => wanted && setLast({ of: pooled, read: { ...all, refused: reasonOf(error) } })
      );
    }
    return () => {
      wanted = false;
    };
  }, [service, pooled, asked, past]);
  const kept = asked !== null && past ? headKept(pooled, asked) : null;
  const otherwise = kept === null ? all : { head: asked, drawn: kept, refused: null };
  const read = asked !== null && last?.of === pooled ? last.read : otherwise;
  return read.head === asked || (read.refused !== null && !past) ? read : otherwise;
}
