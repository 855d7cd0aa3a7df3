/* The model as a tree. The stop is marked as a debugger marks its line; a row's dot is its breakpoint. */

import { caretDownIcon, caretRightIcon } from '@jupyterlab/ui-components';
import * as React from 'react';

import { Place } from '../models/live';
import { IDjinn } from '../tokens';
import { TreeRow, breakpointsAt, inside, plainSite, stopRow, treeRows } from '../models/tree';
import { AddedModuleDescription, BreakpointDescription, ModuleDescription } from '../wire';
import { FeatureEdits, FeaturesAtStop, useFeatures } from './features';
import { Empty, Refused, useInSight } from './parts';
import { PanelProps, Trans, useModel } from './react';

const NO_MODULES: readonly ModuleDescription[] = [];

/** The modules of an engine's model, requested once. Empty until they arrive, or if the request fails. */
export function useModules(service: IDjinn, engine: string | null): readonly ModuleDescription[] {
  const [found, setFound] = React.useState<{
    engine: string;
    modules: readonly ModuleDescription[];
  } | null>(null);
  React.useEffect(() => {
    let wanted = true;
    if (engine !== null) {
      service.modules(engine).then(
        modules => wanted && setFound({ engine, modules }),
        () => undefined // the points are offered anyway
      );
    }
    return () => {
      wanted = false;
    };
  }, [service, engine]);
  return found && found.engine === engine ? found.modules : NO_MODULES;
}

const NONE_ADDED: readonly AddedModuleDescription[] = [];

/** The modules that the user added, requested again when the session moves: a notebook may have added some. */
function useAdded(
  service: IDjinn,
  engine: string | null,
  moved: string
): readonly AddedModuleDescription[] {
  const [found, setFound] = React.useState({ engine, added: NONE_ADDED });
  React.useEffect(() => {
    let wanted = true;
    if (engine !== null) {
      service.addedModules(engine).then(
        added => wanted && setFound({ engine, added }),
        () => undefined // the tree works without them
      );
    }
    return () => {
      wanted = false;
    };
  }, [service, engine, moved]);
  return found.engine === engine ? found.added : NONE_ADDED;
}

export function Modules({ service, trans }: PanelProps): React.JSX.Element {
  const model = useModel(service);
  const [sight, seen] = useInSight<HTMLDivElement>();
  const { chosen, engine, session } = model;
  const modules = useModules(service, seen ? (chosen?.engine ?? null) : null);
  const { state, stopped_at, breakpoints = [] } = session?.described ?? {};
  const moved = [state, stopped_at, ...breakpoints.map(({ site }) => site)].join(' ');
  const added = useAdded(service, seen ? (chosen?.engine ?? null) : null, moved);
  const shown = added.map(({ site }) => site).filter(site => model.opened.has(site));
  const read = useFeatures(service, seen ? chosen : null, session, shown);
  const description = engine?.found.description ?? null;
  return (
    <div ref={sight} className="djinn-Modules-body">
      {chosen && description && session ? (
        <Tree
          key={chosen.engine}
          rowsOf={open => treeRows(description, modules, open, added, read.features)}
          read={read}
          breakpoints={session.described.breakpoints}
          stop={session.described.stopped_at}
          place={chosen}
          service={service}
          trans={trans}
        />
      ) : (
        <Empty>{trans.__('The layers of the model of the chosen session appear here.')}</Empty>
      )}
    </div>
  );
}

interface TreeProps extends PanelProps {
  readonly rowsOf: (open: ReadonlySet<string>) => TreeRow[];
  readonly read: FeaturesAtStop;
  readonly breakpoints: readonly BreakpointDescription[];
  readonly stop: string | null;
  readonly place: Place;
}

function Tree({
  rowsOf,
  read,
  breakpoints,
  stop,
  place,
  service,
  trans
}: TreeProps): React.JSX.Element {
  const open = service.model.opened;
  const [active, setActive] = React.useState<string | null>(null);
  const [, draw] = React.useReducer((count: number) => count + 1, 0);
  const list = React.useRef<HTMLDivElement>(null);
  const rows = rowsOf(open);
  const marked = stopRow(rows, stop);
  const sites = breakpoints.map(({ site }) => site);
  const current = rows.some(({ id }) => id === active) ? active : (marked ?? rows[0]?.id);
  React.useEffect(() => {
    list.current?.querySelector('.djinn-mod-stop')?.scrollIntoView({ block: 'nearest' });
  }, [stop]);
  const toggleOpen = (row: TreeRow): void => {
    const next = new Set(open);
    if (!next.delete(row.id)) {
      next.add(row.id);
    }
    service.model.opened = next;
    draw(); // immediately: the next key may come before the model's frame
  };
  const move = (id: string | undefined): void => {
    if (id !== undefined) {
      setActive(id);
      const node = [...(list.current?.children ?? [])].find(
        child => child.getAttribute('data-id') === id
      );
      (node as HTMLElement | undefined)?.focus();
    }
  };
  const toggleBreakpoint = (row: TreeRow): void => {
    const own = breakpointsAt(rows, row, breakpoints);
    if (own.length) {
      const numbers = own.map(({ number }) => number);
      void service.clearBreakpoints(place, numbers, aboutOf(row));
    } else if (row.site !== null) {
      void service.setBreakpoint(place, row.site);
    }
  };
  const pressed = (event: React.KeyboardEvent, row: TreeRow, index: number): void => {
    const parent = rows
      .slice(0, index)
      .reverse()
      .find(({ depth }) => depth < row.depth);
    const act: Record<string, () => void> = {
      ArrowDown: () => move(rows[index + 1]?.id),
      ArrowUp: () => move(rows[index - 1]?.id),
      Home: () => move(rows[0]?.id),
      End: () => move(rows.at(-1)?.id),
      ArrowRight: () =>
        row.open === false ? toggleOpen(row) : row.open && move(rows[index + 1]?.id),
      ArrowLeft: () => (row.open ? toggleOpen(row) : move(parent?.id)),
      Enter: () => toggleBreakpoint(row),
      ' ': () => toggleBreakpoint(row)
    };
    if (act[event.key] && !event.ctrlKey && !event.metaKey && !event.altKey) {
      event.preventDefault();
      event.stopPropagation();
      act[event.key]();
    }
  };
  return (
    <div
      className="djinn-Tree"
      role="tree"
      ref={list}
      aria-label={trans.__('Layers and points of the model')}
    >
      {rows.map((row, index) => (
        <React.Fragment key={row.id}>
          <Row
            row={row}
            breakpoints={breakpointsAt(rows, row, breakpoints)}
            inside={inside(row, sites)}
            stopped={row.id === marked}
            focusable={row.id === current}
            toggleOpen={() => toggleOpen(row)}
            toggleBreakpoint={() => toggleBreakpoint(row)}
            onFocus={() => setActive(row.id)}
            onKeyDown={event => pressed(event, row, index)}
            trans={trans}
          >
            {isEdited(row, stop) && (
              <FeatureEdits
                place={place}
                site={row.id}
                reached={row.id === current}
                service={service}
                trans={trans}
              />
            )}
          </Row>
          <Refused subject={{ ...place, about: aboutOf(row) }} service={service} trans={trans} />
          <Refused
            subject={{ ...place, about: `edit of ${row.site}` }}
            service={service}
            trans={trans}
          />
          {row.open && row.module !== undefined && (
            <Unread row={row} next={rows[index + 1]} stop={stop} read={read} trans={trans} />
          )}
        </React.Fragment>
      ))}
    </div>
  );
}

/** Whether a row is a feature that an edit can change: the pass is stopped at its module. */
function isEdited({ depth, module, readOnly }: TreeRow, stop: string | null): boolean {
  return depth === 2 && !readOnly && stop !== null && plainSite(stop) === module;
}

interface UnreadProps {
  readonly row: TreeRow;
  readonly next: TreeRow | undefined;
  readonly stop: string | null;
  readonly read: FeaturesAtStop;
  readonly trans: Trans;
}

/** The text below an open module without features to list. */
function Unread({ row, next, stop, read, trans }: UnreadProps): React.JSX.Element | null {
  if (next?.module === row.module) {
    return null;
  }
  return <Empty>{whyNone(row.id, stop, read, trans)}</Empty>;
}

function whyNone(
  site: string,
  stop: string | null,
  { features, refused }: FeaturesAtStop,
  trans: Trans
): string {
  if (stop === null) {
    return trans.__('The strongest features appear here while the session is stopped.');
  }
  return features.has(site)
    ? trans.__('No feature of %1 is active at the last position.', site)
    : (refused.get(site) ?? trans.__('Reading the features.'));
}

/** The subject of a click's request on a row. */
function aboutOf({ site }: TreeRow): string {
  return `breakpoint at ${site}`;
}

interface RowProps {
  readonly row: TreeRow;
  readonly breakpoints: readonly BreakpointDescription[];
  readonly inside: number;
  readonly stopped: boolean;
  readonly focusable: boolean;
  readonly toggleOpen: () => void;
  readonly toggleBreakpoint: () => void;
  readonly onFocus: () => void;
  readonly onKeyDown: (event: React.KeyboardEvent) => void;
  readonly children?: React.ReactNode;
  readonly trans: Trans;
}

function Row(props: RowProps): React.JSX.Element {
  const { row, breakpoints, inside: within, stopped, focusable, trans } = props;
  const label = labelOf(row, trans);
  const armed = breakpoints.some(({ enabled }) => enabled);
  const said = [
    label,
    ...(breakpoints.length ? [armed ? trans.__('breakpoint') : trans.__('breakpoint, off')] : []),
    ...(within ? [trans._n('%1 breakpoint inside', '%1 breakpoints inside', within)] : []),
    ...(stopped ? [trans.__('stopped here')] : [])
  ];
  const Caret = row.open ? caretDownIcon : caretRightIcon;
  return (
    <div
      role="treeitem"
      className={`djinn-Row${stopped ? ' djinn-mod-stop' : ''}`}
      data-id={row.id}
      aria-level={row.depth + 1}
      aria-expanded={row.open ?? undefined}
      aria-selected={focusable}
      aria-label={said.join(', ')}
      tabIndex={focusable ? 0 : -1}
      title={row.site === null ? undefined : trans.__('Breakpoint at %1', row.site)}
      onFocus={props.onFocus}
      onKeyDown={props.onKeyDown}
      onClick={row.site === null ? props.toggleOpen : props.toggleBreakpoint}
    >
      <span className="djinn-Row-gutter">
        {row.site !== null && (
          <span
            className={`djinn-Row-dot${breakpoints.length ? ' djinn-mod-set' : ''}${armed ? '' : ' djinn-mod-off'}`}
          />
        )}
      </span>
      <span
        className="djinn-Row-caret"
        style={{ marginLeft: `${row.depth * 12}px` }}
        onClick={event => {
          if (row.open !== null) {
            event.stopPropagation();
            props.toggleOpen();
          }
        }}
      >
        {row.open !== null && <Caret.react tag="span" width="14px" height="14px" />}
      </span>
      <span className="djinn-Row-label">{label}</span>
      <span className="djinn-soft djinn-Row-detail">
        {within
          ? trans.__('%1 inside', within)
          : row.readOnly
            ? trans.__('%1, read only', row.detail)
            : row.detail}
      </span>
      {props.children}
    </div>
  );
}

function labelOf({ depth, open, label, module }: TreeRow, trans: Trans): string {
  if (open === null || module !== undefined) {
    return label;
  }
  return depth === 0 ? trans.__('Layer %1', label) : trans.__('modules');
}
