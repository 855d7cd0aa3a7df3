/* The edits of the present stop: each can be turned off and on, and all can be undone. */

import * as React from 'react';

import { Place } from '../models/live';
import { IDjinn } from '../tokens';
import { spellNumber } from '../models/spell';
import { EditAtStop, Paused } from '../wire';
import { Refused } from './parts';
import { Trans } from './react';

interface EditsProps {
  readonly paused: Paused;
  readonly place: Place;
  /** The session has moved on: these edits can no longer be changed. */
  readonly past: boolean;
  readonly service: IDjinn;
  readonly trans: Trans;
}

export function Edits({ paused, place, past, service, trans }: EditsProps): React.JSX.Element {
  return (
    <div className="djinn-Stop-edits">
      <ul className="djinn-list" aria-label={trans.__('Edits of this stop')}>
        {paused.influences.edits.map(edit => (
          <li key={edit.number}>
            <label className="djinn-Switch">
              <input
                type="checkbox"
                checked={edit.enabled}
                disabled={past}
                aria-label={trans.__('Edit %1 is on: %2', edit.number, edit.what)}
                onChange={event => service.enableEdit(place, edit.number, event.target.checked)}
              />
              <span className="djinn-mono">{edit.what}</span>
            </label>
            <span className="djinn-soft djinn-Switch-size">{sizeOf(edit, trans)}</span>
            <Refused
              subject={{ ...place, about: `edit ${edit.number}` }}
              service={service}
              trans={trans}
            />
          </li>
        ))}
      </ul>
      <button className="djinn-textButton" disabled={past} onClick={() => service.revert(place)}>
        {trans.__('Undo the edits')}
      </button>
      <Refused subject={{ ...place, about: 'edits' }} service={service} trans={trans} />
    </div>
  );
}

function sizeOf({ enabled, relative_size: size }: EditAtStop, trans: Trans): string {
  return !enabled ? trans.__('off') : size === null ? '' : relativeSize(size, trans);
}

/** The relative size of a change, as the kernel's views spell it. */
export function relativeSize(size: number, trans: Trans): string {
  return size === 0
    ? trans.__('changed nothing')
    : trans.__('relative size %1', spellNumber(size, ''));
}
