/* Engines and their sessions in JupyterLab's list of running items. */

import { IRunningSessions } from '@jupyterlab/running';
import { LabIcon, notebookIcon } from '@jupyterlab/ui-components';
import { ISignal } from '@lumino/signaling';

import { progressText } from '../panels/doing';
import { djinnIcon } from '../panels/icons';
import { Place, places } from '../models/live';
import { CommandIDs, Execute } from '../panels/names';
import { Trans } from '../panels/react';
import { IDjinn } from '../tokens';
import { EngineFound, LiveSession } from '../wire';

type Item = IRunningSessions.IRunningItem;

/** Marks the items that are engines. */
const ENGINE = 'djinn-Running-engine';

export class RunningEngines implements IRunningSessions.IManager {
  constructor(service: IDjinn, execute: Execute, trans: Trans) {
    this._service = service;
    this._execute = execute;
    this._trans = trans;
    this.name = trans.__('Djinn Engines');
    this.shutdownAllLabel = trans.__('Stop All');
    this.shutdownAllConfirmationText = trans.__(
      'Stop all engines that no notebook uses? Their models leave memory and their sessions end.'
    );
    this.runningChanged = service.model.stateChanged;
  }

  readonly name: string;
  readonly supportsMultipleViews = true;
  readonly shutdownLabel = (item: Item): string =>
    item.className === ENGINE ? this._trans.__('Stop') : this._trans.__('Close');
  readonly shutdownAllLabel: string;
  readonly shutdownAllConfirmationText: string;
  readonly runningChanged: ISignal<unknown, unknown>;

  /** Engines with their sessions inside, or all in one list if the person prefers that. */
  running({ mode }: { mode: 'tree' | 'list' }): Item[] {
    const { live } = this._service.model;
    return Object.entries(live.engines).flatMap(([engine, { found }]) => {
      const sessions = places(live)
        .filter(({ place }) => place.engine === engine)
        .map(({ place, session }) => this._session(place, session));
      const item = this._engine(engine, found);
      return mode === 'tree' ? [{ ...item, children: sessions }] : [item, ...sessions];
    });
  }

  /** Engines that notebooks use refuse, and stay. */
  shutdownAll(): void {
    for (const engine of Object.keys(this._service.model.live.engines)) {
      this._service.stopEngine(engine, false).catch((error: Error) => {
        this._service.model.refuse({ engine, session: null, about: 'stop' }, error.message);
      });
    }
  }

  refreshRunning(): void {
    this._service.reconnect();
  }

  private _engine(engine: string, found: EngineFound): Item {
    return {
      label: () => found.model,
      labelTitle: () =>
        found.pid === null
          ? this._trans.__('On %1', found.host)
          : this._trans.__('Process %1 on %2', found.pid, found.host),
      icon: () => djinnIcon,
      detail: () => found.description?.device ?? found.state,
      className: ENGINE,
      open: () => void this._execute(CommandIDs.show),
      shutdown: () => void this._execute(CommandIDs.stopEngine, { engine })
    };
  }

  private _session(place: Place, session: LiveSession): Item {
    const args = { engine: place.engine, session: place.session };
    const icon: LabIcon = session.notebook === null ? djinnIcon : notebookIcon;
    return {
      label: () => session.label,
      labelTitle: () => place.session,
      icon: () => icon,
      detail: () => detail(session, this._trans),
      open: () => {
        this._service.model.choose(place);
        const command = session.notebook === null ? CommandIDs.show : CommandIDs.openNotebook;
        void this._execute(command, args);
      },
      shutdown: () => void this._execute(CommandIDs.close, args)
    };
  }

  private readonly _service: IDjinn;
  private readonly _execute: Execute;
  private readonly _trans: Trans;
}

function detail({ described }: LiveSession, trans: Trans): string {
  const { progress, state, stopped_at } = described;
  return progress === null ? (stopped_at ?? state) : progressText(progress, trans);
}
