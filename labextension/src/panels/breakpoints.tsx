/* The breakpoints of the chosen session: add by site with completion and condition, enable, count, remove. */

import { closeIcon } from '@jupyterlab/ui-components';
import * as React from 'react';

import { completions } from '../places';
import { BreakpointInfo, ModuleInfo } from '../wire';
import { Action, Empty } from './parts';
import { PanelProps, Trans, useModel } from './react';
import { useModules } from './modules';

const OFFERED = 60;

export function Breakpoints(props: PanelProps): React.JSX.Element {
  const { service, trans } = props;
  const model = useModel(service);
  const { chosen, session } = model;
  const modules = useModules(service, chosen?.engine ?? null);
  if (chosen === null || session === null) {
    return <Empty>{trans.__('Breakpoints of the session that is chosen appear here.')}</Empty>;
  }
  const { breakpoints } = session.info;
  return (
    <>
      <Add key={chosen.engine} modules={modules} {...props} />
      {breakpoints.length === 0 && <Empty>{trans.__('No breakpoints.')}</Empty>}
      <ul className="djinn-list" aria-label={trans.__('Breakpoints of %1', session.label)}>
        {breakpoints.map(breakpoint => (
          <Row
            key={breakpoint.number}
            breakpoint={breakpoint}
            here={session.info.stopped_at === breakpoint.site}
            enable={on => service.enableBreakpoint(chosen, breakpoint.number, on)}
            remove={() => service.clearBreakpoints(chosen, [breakpoint.number])}
            trans={trans}
          />
        ))}
      </ul>
    </>
  );
}

interface RowProps {
  readonly breakpoint: BreakpointInfo;
  readonly here: boolean;
  readonly enable: (on: boolean) => unknown;
  readonly remove: () => unknown;
  readonly trans: Trans;
}

function Row({ breakpoint, here, enable, remove, trans }: RowProps): React.JSX.Element {
  const { site, when, once, enabled, hits } = breakpoint;
  return (
    <li className={`djinn-Breakpoint${here ? ' djinn-mod-stop' : ''}`}>
      <label className="djinn-Breakpoint-main">
        <input
          type="checkbox"
          checked={enabled}
          aria-label={trans.__('Breakpoint at %1 is on', site)}
          onChange={event => enable(event.target.checked)}
        />
        <span className="djinn-mono djinn-Breakpoint-site">{site}</span>
      </label>
      <span
        className="djinn-soft djinn-Breakpoint-hits"
        title={trans._n('It stopped %1 time', 'It stopped %1 times', hits)}
      >
        {trans._n('%1 hit', '%1 hits', hits)}
      </span>
      <Action icon={closeIcon} label={trans.__('Remove the breakpoint at %1', site)} act={remove} />
      {(when !== null || once) && (
        <div className="djinn-soft djinn-Breakpoint-when">
          {when !== null && <span className="djinn-mono">{trans.__('when %1', when)}</span>}
          {once && <span>{trans.__('once')}</span>}
        </div>
      )}
    </li>
  );
}

interface AddProps extends PanelProps {
  readonly modules: readonly ModuleInfo[];
}

function Add({ service, trans, modules }: AddProps): React.JSX.Element {
  const [site, setSite] = React.useState('');
  const [when, setWhen] = React.useState('');
  const offered = React.useId();
  const description = service.model.engine?.found.description ?? null;
  const all = React.useMemo(
    () => (description ? completions(description, modules) : []),
    [description, modules]
  );
  const add = async (event: React.FormEvent): Promise<void> => {
    event.preventDefault();
    const { chosen } = service.model;
    if (chosen && site.trim()) {
      await service.setBreakpoint(chosen, site.trim(), when.trim() || null);
      if (service.model.remark === null) {
        setSite('');
        setWhen('');
      }
    }
  };
  return (
    <form className="djinn-Add" onSubmit={add}>
      <input
        className="jp-mod-styled"
        value={site}
        list={offered}
        spellCheck={false}
        autoComplete="off"
        placeholder={trans.__('Site, as 20 or z.9[6]')}
        aria-label={trans.__('Site of the new breakpoint')}
        onChange={event => setSite(event.target.value)}
      />
      <datalist id={offered}>
        {matching(all, site).map(name => (
          <option key={name} value={name} />
        ))}
      </datalist>
      <input
        className="jp-mod-styled"
        value={when}
        spellCheck={false}
        autoComplete="off"
        placeholder={trans.__('When: step == 0')}
        aria-label={trans.__('Condition of the new breakpoint')}
        onChange={event => setWhen(event.target.value)}
      />
      <button type="submit" className="djinn-textButton" disabled={!site.trim()}>
        {trans.__('Add')}
      </button>
      {service.model.remark && (
        <p className="djinn-Add-refused" role="status">
          {service.model.remark.text}
        </p>
      )}
    </form>
  );
}

/** What begins with `typed` before what contains it. */
export function matching(all: readonly string[], typed: string): string[] {
  const begins = all.filter(name => name.startsWith(typed));
  const contains = all.filter(name => !name.startsWith(typed) && name.includes(typed));
  return [...begins, ...contains].slice(0, OFFERED);
}
