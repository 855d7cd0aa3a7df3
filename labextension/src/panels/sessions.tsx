/* The engines and their sessions, with the actions of the chosen one. */

import {
  closeIcon,
  copyIcon,
  notebookIcon,
  stopIcon,
  addBelowIcon,
  caretDownIcon,
  caretRightIcon
} from '@jupyterlab/ui-components';
import { IDisposable } from '@lumino/disposable';
import * as React from 'react';

import { attachCell, dragFrom } from './attaching';
import { doingText } from './doing';
import { swapInIcon, swapOutIcon } from './icons';
import {
  Fold,
  Place,
  Placed,
  bytesOf,
  canLeave,
  canReturn,
  find,
  folded,
  isDown,
  isRowOf,
  key,
  places
} from '../models/live';
import { same } from '../models/choice';
import { CommandIDs, Execute } from './names';
import { leftOf } from '../models/closing';
import { spellBytes, spellClock, spellSeconds } from '../models/spell';
import { LiveEngine, LiveSession, Residency, SessionState } from '../wire';
import { Notice } from './notice';
import { Action, Bad, Refused } from './parts';
import { PanelProps, Trans, useClock, useModel } from './react';

/** Shorter idle times, in seconds, are not shown. */
const IDLE_SHOWN = 10;

/** The subjects of requests that a session's row, its menu and the toolbar send. */
const ASKED_HERE = ['move', 'fork', 'swap', 'accept', 'breakpoints', 'attach', 'close'];

export interface SessionsProps extends PanelProps {
  readonly execute: Execute;
}

export function Sessions(props: SessionsProps): React.JSX.Element {
  const { service, trans } = props;
  const model = useModel(service);
  const now = useClock(5);
  const engines = Object.entries(model.live.engines);
  return (
    <>
      <div className="djinn-Sessions-notices">
        <Notice service={service} trans={trans} />
        {model.live.ended.map(({ engine, reason }) => (
          <Bad key={engine} text={reason} dismiss={() => model.dismiss(engine)} trans={trans} />
        ))}
      </div>
      <p className="djinn-spoken" role="status">
        {model.session && `${model.session.label}: ${doingText(model.session, trans)}`}
      </p>
      {model.live.current && engines.length === 0 && <NoEngine trans={trans} />}
      {model.left && <Left place={model.left} {...props} />}
      {engines.map(([id, engine]) => (
        <Engine key={id} id={id} engine={engine} now={now} {...props} />
      ))}
    </>
  );
}

function NoEngine({ trans }: { trans: Trans }): React.JSX.Element {
  return (
    <div className="djinn-Notice" role="status">
      <p>{trans.__('No engine runs. Load a model in a notebook, and its sessions appear here:')}</p>
      <pre className="djinn-code">{'%load_ext djinn_jupyter\n%djinn_load demo'}</pre>
    </div>
  );
}

/** A renamed notebook has another session after its kernel's next start. */
function Left({
  place,
  service,
  trans,
  execute
}: SessionsProps & { readonly place: Place }): React.JSX.Element {
  const session = find(service.model.live, place);
  const { tokens, breakpoints } = session?.described ?? { tokens: 0, breakpoints: [] };
  const label = session?.label ?? place.session;
  const args = { engine: place.engine, session: place.session };
  return (
    <div className="djinn-Notice" role="status">
      <p>
        {trans.__(
          "This notebook was renamed. '%1' has %2 and %3: use it with",
          label,
          trans._n('%1 token', '%1 tokens', tokens),
          trans._n('%1 breakpoint', '%1 breakpoints', breakpoints.length)
        )}{' '}
        <span className="djinn-mono">{`%djinn_use ${label}`}</span>
      </p>
      <button
        className="djinn-textButton"
        onClick={() => execute(CommandIDs.insertAttachCell, args)}
      >
        {trans.__('Insert a cell that attaches to it')}
      </button>
    </div>
  );
}

interface EngineProps extends SessionsProps {
  readonly id: string;
  readonly engine: LiveEngine;
  readonly now: number;
}

function Engine(props: EngineProps): React.JSX.Element {
  const { id, engine, service, trans } = props;
  const { found } = engine;
  const aside = new Set(service.model.aside(id).map(({ place }) => key(place)));
  const rows = places(service.model.live).filter(
    ({ place }) => place.engine === id && !aside.has(key(place))
  );
  const labels = new Set(rows.map(({ session }) => session.label));
  return (
    <section className="djinn-Engine" aria-label={trans.__('Engine of %1', found.model)}>
      <header className="djinn-Engine-head">
        <h3 className="djinn-Engine-name" title={describe(engine, trans)}>
          {found.model}
        </h3>
        <span className="djinn-soft djinn-Engine-facts">
          {[found.description?.dtype, found.description?.device].filter(Boolean).join(', ')}
        </span>
        <Action
          icon={stopIcon}
          label={trans.__('Stop the engine of %1', found.model)}
          why={waits(engine, trans)}
          act={() => props.execute(CommandIDs.stopEngine, { engine: id })}
        />
      </header>
      <Refused
        subject={{ engine: id, session: null, about: 'stop' }}
        service={service}
        trans={trans}
      />
      {found.state !== 'ready' && (
        <p
          className={`djinn-Notice${found.state === 'refused' ? ' djinn-mod-bad' : ''}`}
          role="status"
        >
          {found.reason ?? trans.__('Connecting to this engine.')}
        </p>
      )}
      {isDown(engine) && (
        <p
          className="djinn-Notice djinn-mod-bad"
          role="status"
          title={trans.__(
            'What runs there goes on. If the line stays down, look whether that machine is up, and its engine (djinn serve) too.'
          )}
        >
          {trans.__(
            'The line to %1 is down since %2 and is tried again. Shown is what was last known.',
            found.host,
            spellClock(found.down_since ?? 0)
          )}
        </p>
      )}
      <LeftSessions {...props} />
      {found.state === 'ready' && rows.length === 0 && aside.size === 0 && (
        <p className="djinn-soft djinn-Engine-empty">{trans.__('No sessions.')}</p>
      )}
      <ul className="djinn-list">
        {folded(rows).map(line =>
          'rows' in line ? (
            <Rows key={line.stem} fold={line} {...props} />
          ) : (
            <Row
              key={key(line.place)}
              {...line}
              within={isRowOf(line.session.label, labels)}
              {...props}
            />
          )
        )}
      </ul>
    </section>
  );
}

/** The reason why a request to an engine would wait; null if it would not. */
function waits(engine: LiveEngine, trans: Trans): string | null {
  return isDown(engine) ? trans.__('The line to %1 is down.', engine.found.host) : null;
}

function describe({ found }: LiveEngine, trans: Trans): string {
  const { description } = found;
  const what = description
    ? trans.__(
        '%1, %2 layers, %3 attention. ',
        description.architecture,
        description.layers,
        description.attention
      )
    : '';
  return (
    what +
    (found.pid === null
      ? trans.__('On %1.', found.host)
      : trans.__('Process %1 on %2.', found.pid, found.host))
  );
}

/** Closes the sessions of closed notebooks, and has them back. */
function LeftSessions({ id, engine, service, trans }: EngineProps): React.JSX.Element | null {
  const closing = service.model.closingOf(id);
  const aside = service.model.aside(id).length;
  if (closing && aside > 0) {
    return (
      <div className="djinn-Notice djinn-Closing" role="status">
        <p>
          {trans._n(
            '%1 session of a closed notebook is closed at %2.',
            '%1 sessions of closed notebooks are closed at %2.',
            aside,
            spellClock(closing.due, true)
          )}
        </p>
        <button className="djinn-textButton" onClick={() => service.undoClosing(id)}>
          {trans.__('Undo')}
        </button>
      </div>
    );
  }
  const count = leftOf(service.model.live, id).length;
  return count === 0 || isDown(engine) ? null : (
    <button className="djinn-textButton djinn-CloseLeft" onClick={() => service.closeLeft(id)}>
      {trans._n(
        'Close %1 session of a closed notebook',
        'Close %1 sessions of closed notebooks',
        count
      )}
    </button>
  );
}

/** The rows of a batch in one line, which opens. It is open for the chosen row, until a person closes it. */
function Rows(props: EngineProps & { readonly fold: Fold }): React.JSX.Element {
  const { fold, service, trans } = props;
  const chosen = fold.rows.some(({ place }) => same(place, service.model.chosen));
  const [set, open] = React.useState<boolean | null>(null);
  React.useEffect(() => open(null), [chosen]);
  const opened = set ?? chosen;
  const Caret = opened ? caretDownIcon : caretRightIcon;
  return (
    <li
      className={`djinn-Fold${fold.rows.every(({ session }) => session.closed) ? ' djinn-mod-closed' : ''}`}
    >
      <button
        className="djinn-Session-main"
        aria-expanded={opened}
        aria-label={trans.__(
          '%1 of %2, %3',
          trans._n('%1 row', '%1 rows', fold.rows.length),
          fold.stem,
          statesText(fold, trans)
        )}
        onClick={() => open(!opened)}
      >
        <Caret.react tag="span" className="djinn-iconButton-icon" width="12px" height="12px" />
        <span>{trans._n('%1 row', '%1 rows', fold.rows.length)}</span>
        <span className="djinn-soft djinn-Session-state">{statesText(fold, trans)}</span>
      </button>
      {opened && (
        <ul className="djinn-list">
          {fold.rows.map(row => (
            <Row key={key(row.place)} {...row} within={true} {...props} />
          ))}
        </ul>
      )}
    </li>
  );
}

/** How many rows are in which state: `38 idle, 2 paused`. */
function statesText(fold: Fold, trans: Trans): string {
  const counted = (state: SessionState): number =>
    fold.rows.filter(({ session }) => shownState(session) === state).length;
  const [running, paused, idle] = [counted('running'), counted('paused'), counted('idle')];
  return [
    ...(running ? [trans.__('%1 running', running)] : []),
    ...(paused ? [trans.__('%1 paused', paused)] : []),
    ...(idle ? [trans.__('%1 idle', idle)] : [])
  ].join(', ');
}

interface RowProps extends EngineProps, Placed {
  /** It is listed under the session of its batch. */
  readonly within: boolean;
}

function Row(props: RowProps): React.JSX.Element {
  const { place, session, within, service, trans, now } = props;
  const { described } = session;
  const chosen = same(place, service.model.chosen);
  const row = React.useRef<HTMLLIElement>(null);
  const pressed = React.useRef<IDisposable | null>(null);
  React.useEffect(() => () => pressed.current?.dispose(), []);
  React.useEffect(() => (chosen ? keepInSight(row.current) : undefined), [chosen]);
  const cell = attachCell(props.engine.found.load, place.session);
  return (
    <li
      ref={row}
      className={`djinn-Session${chosen ? ' djinn-mod-chosen' : ''}${within ? ' djinn-mod-within' : ''}${session.closed ? ' djinn-mod-closed' : ''}${described.progress ? ' djinn-mod-working' : ''}`}
      onPointerDown={event => {
        pressed.current?.dispose();
        pressed.current = dragFrom(event, cell, session.label);
      }}
      onContextMenu={() => service.model.choose(place)}
    >
      <button
        className="djinn-Session-main"
        aria-pressed={chosen}
        aria-label={trans.__('Session %1, %2', session.label, doingText(session, trans))}
        title={trans.__(
          '%1. Drag it into a notebook for a cell that attaches to it.',
          described.name
        )}
        onClick={() => service.model.choose(place)}
      >
        <span className={`djinn-dot djinn-mod-${shownState(session)}`} aria-hidden="true" />
        <span className="djinn-Session-label">{session.label}</span>
        <span className="djinn-soft djinn-Session-state">{doingText(session, trans)}</span>
      </button>
      <div className="djinn-soft djinn-Session-facts">
        {facts(session, now, trans).join(' \u00b7 ')}
      </div>
      {chosen && <Actions {...props} />}
      {ASKED_HERE.map(about => (
        <Refused key={about} subject={{ ...place, about }} service={service} trans={trans} />
      ))}
    </li>
  );
}

/** Scroll now, and whenever the panel's height changes; a person's scrolling stays. Returns what ends this. */
function keepInSight(row: HTMLElement | null): (() => void) | undefined {
  row?.scrollIntoView({ block: 'nearest' });
  const panel = row?.closest('.djinn-Panel');
  if (!row || !panel) {
    return undefined;
  }
  const resized = new ResizeObserver(() => row.scrollIntoView({ block: 'nearest' }));
  resized.observe(panel);
  return () => resized.disconnect();
}

/** Work that does not move a session is shown as running too. */
function shownState({ described }: LiveSession): SessionState {
  return described.progress === null ? described.state : 'running';
}

function facts(session: LiveSession, now: number, trans: Trans): string[] {
  const { described, idle_since, kernel, notebook } = session;
  const busy = shownState(session) === 'running';
  const bytes = bytesOf(session);
  const where: Record<Residency, string> = {
    resident: trans.__('on the device'),
    storing: trans.__('leaving the device'),
    host: trans.__('in host memory'),
    loading: trans.__('coming back'),
    disk: trans.__('on disk')
  };
  return [
    described.progress === null
      ? trans._n('%1 token', '%1 tokens', described.tokens)
      : trans.__('for %1', notebook ?? described.holder ?? described.owner),
    ...(described.step === null
      ? []
      : [described.step === 0 ? trans.__('prompt') : trans.__('step %1', described.step)]),
    ...(bytes > 0
      ? [`${spellBytes(bytes)} ${where[described.residency]}`]
      : described.residency === 'resident'
        ? []
        : [where[described.residency]]),
    ...(busy || idle_since === null || now - idle_since < IDLE_SHOWN
      ? []
      : [trans.__('idle %1', spellSeconds(now - idle_since))]),
    ...(described.exactness === 'recomputed' ? [trans.__('recomputed')] : []),
    ...(described.attention === null ? [] : [trans.__('%1 attention', described.attention)]),
    ...(described.adapter === null ? [] : [trans.__('adapter %1', described.adapter)]),
    ...(session.closed ? [trans.__('notebook closed')] : []),
    ...(kernel === null || kernel.state === 'idle' ? [] : [trans.__('kernel %1', kernel.state)])
  ];
}

function Actions({ place, session, trans, execute, ...props }: RowProps): React.JSX.Element {
  const { engine, session: name } = place;
  const args = { engine, session: name };
  const why = waits(props.engine, trans);
  return (
    <div
      className="djinn-Session-actions"
      role="group"
      aria-label={trans.__('Session %1', session.label)}
    >
      {session.notebook !== null && (
        <Action
          icon={notebookIcon}
          label={trans.__('Open %1', session.notebook)}
          act={() => execute(CommandIDs.openNotebook, args)}
        />
      )}
      <Action
        icon={addBelowIcon}
        label={trans.__('Insert a cell that attaches to %1', session.label)}
        act={() => execute(CommandIDs.insertAttachCell, args)}
      />
      <Action
        icon={copyIcon}
        label={trans.__('Fork %1', session.label)}
        why={why}
        act={() => execute(CommandIDs.fork, args)}
      />
      {session.described.residency === 'resident' || session.described.residency === 'storing' ? (
        <Action
          icon={swapOutIcon}
          label={trans.__('Move %1 out of the device', session.label)}
          disabled={!canLeave(session)}
          why={why}
          act={() => execute(CommandIDs.swapOut, args)}
        />
      ) : (
        <Action
          icon={swapInIcon}
          label={trans.__('Bring %1 back to the device', session.label)}
          disabled={!canReturn(session)}
          why={why}
          act={() => execute(CommandIDs.swapIn, args)}
        />
      )}
      <Action
        icon={closeIcon}
        label={
          session.described.progress === null
            ? trans.__('Close %1', session.label)
            : trans.__('End %1', session.label)
        }
        why={why}
        act={() => execute(CommandIDs.close, args)}
      />
    </div>
  );
}
