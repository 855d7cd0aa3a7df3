/* The breakpoints of the chosen session: enable, count, change the condition, remove. */

import { closeIcon, editIcon } from '@jupyterlab/ui-components';
import * as React from 'react';

import { BreakpointDescription } from '../wire';
import { AddBreakpoint, ConditionFields, useCondition } from './adding';
import { useModules } from './modules';
import { Action, Empty, Refused } from './parts';
import { PanelProps, Trans, useModel } from './react';
import { Rules } from './rules';
import { Place } from '../models/live';
import { IDjinn } from '../tokens';

export function Breakpoints(props: PanelProps): React.JSX.Element {
  const { service, trans } = props;
  const model = useModel(service);
  const { chosen, session } = model;
  const modules = useModules(service, chosen?.engine ?? null);
  if (chosen === null || session === null) {
    return <Empty>{trans.__('Breakpoints of the session that is chosen appear here.')}</Empty>;
  }
  const { breakpoints, rules } = session.described;
  return (
    <>
      <AddBreakpoint key={chosen.engine} modules={modules} {...props} />
      {breakpoints.length === 0 && <Empty>{trans.__('No breakpoints.')}</Empty>}
      <ul className="djinn-list" aria-label={trans.__('Breakpoints of %1', session.label)}>
        {breakpoints.map(breakpoint => (
          <Row
            key={`${chosen.engine} ${chosen.session} ${breakpoint.number}`}
            breakpoint={breakpoint}
            here={session.described.stopped_at === breakpoint.site}
            place={chosen}
            service={service}
            trans={trans}
          />
        ))}
      </ul>
      {rules.length > 0 && (
        <Rules rules={rules} label={session.label} place={chosen} service={service} trans={trans} />
      )}
    </>
  );
}

interface RowProps {
  readonly breakpoint: BreakpointDescription;
  readonly here: boolean;
  readonly place: Place;
  readonly service: IDjinn;
  readonly trans: Trans;
}

function Row(props: RowProps): React.JSX.Element {
  const { breakpoint, here, place, service, trans } = props;
  const { number, site, when, once, enabled, hits } = breakpoint;
  const about = `breakpoint ${number}`;
  const [changing, setChanging] = React.useState(false);
  return (
    <li className={`djinn-Breakpoint${here ? ' djinn-mod-stop' : ''}`}>
      <label className="djinn-Breakpoint-main">
        <input
          type="checkbox"
          checked={enabled}
          aria-label={trans.__('Breakpoint at %1 is on', site)}
          onChange={event => service.enableBreakpoint(place, number, event.target.checked)}
        />
        <span className="djinn-mono djinn-Breakpoint-site">{site}</span>
      </label>
      <span
        className="djinn-soft djinn-Breakpoint-hits"
        title={trans._n('It stopped %1 time', 'It stopped %1 times', hits)}
      >
        {trans._n('%1 hit', '%1 hits', hits)}
      </span>
      <Action
        icon={editIcon}
        label={trans.__('Change the condition of the breakpoint at %1', site)}
        pressed={changing}
        act={() => setChanging(!changing)}
      />
      <Action
        icon={closeIcon}
        label={trans.__('Remove the breakpoint at %1', site)}
        act={() => service.clearBreakpoints(place, [number], about)}
      />
      {changing ? (
        <Change {...props} end={() => setChanging(false)} />
      ) : (
        (when !== null || once) && (
          <div className="djinn-soft djinn-Breakpoint-when">
            {when !== null && <span className="djinn-mono">{trans.__('when %1', when)}</span>}
            {once && <span>{trans.__('once')}</span>}
          </div>
        )
      )}
      <Refused subject={{ ...place, about }} service={service} trans={trans} />
    </li>
  );
}

function Change(props: RowProps & { readonly end: () => void }): React.JSX.Element {
  const { breakpoint, place, service, trans, end } = props;
  const condition = useCondition(breakpoint.when ?? '', breakpoint.once);
  const submit = (event: React.FormEvent): void => {
    event.preventDefault();
    const wanted = { site: breakpoint.site, ...condition.wanted };
    condition.attempt(service.changeBreakpoint(place, breakpoint, wanted), end);
  };
  const escaped = (event: React.KeyboardEvent): void => {
    if (event.key === 'Escape') {
      event.stopPropagation();
      end();
    }
  };
  return (
    <form className="djinn-Add djinn-Breakpoint-change" onSubmit={submit} onKeyDown={escaped}>
      <ConditionFields
        condition={condition}
        label={trans.__('Condition of the breakpoint at %1', breakpoint.site)}
        submit={trans.__('Set')}
        focused
        trans={trans}
      />
    </form>
  );
}
