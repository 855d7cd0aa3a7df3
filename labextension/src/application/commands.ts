/* The commands of the palette, toolbars, shortcuts and panels. Each acts on the chosen session, or on a named one. */

import { JupyterFrontEnd } from '@jupyterlab/application';
import { Dialog, InputDialog, showDialog, showErrorMessage } from '@jupyterlab/apputils';
import {
  LabIcon,
  fastForwardIcon,
  pauseIcon,
  runIcon,
  stepIntoIcon,
  stepOverIcon
} from '@jupyterlab/ui-components';
import { CommandRegistry } from '@lumino/commands';
import { ReadonlyPartialJSONObject } from '@lumino/coreutils';
import { DisposableDelegate, DisposableSet, IDisposable } from '@lumino/disposable';

import { attachCell } from '../panels/attaching';
import { keptText, progressText } from '../panels/doing';
import { backIcon, djinnIcon } from '../panels/icons';
import { reasonOf } from '../service/channel';
import { Place, canLeave, canReturn, find, isDown, reached } from '../models/live';
import { CommandIDs, MOVES, SESSION_COMMANDS } from '../panels/names';
import { Trans } from '../panels/react';
import { IDjinn } from '../tokens';
import { LiveSession, SessionState } from '../wire';

interface Move {
  readonly id: string;
  readonly label: string;
  readonly icon: LabIcon;
  readonly when: SessionState;
  readonly act: (place: Place) => Promise<void>;
}

/** Add the commands, and give the page's style and shortcuts the session's state. Dispose the result to undo it. */
export function addCommands(
  app: JupyterFrontEnd,
  service: IDjinn,
  trans: Trans,
  sidebar: string
): IDisposable {
  const { commands } = app;
  const show = commands.addCommand(CommandIDs.show, {
    label: trans.__('Show the Djinn Sidebar'),
    caption: trans.__('Djinn: show the sidebar, with the sessions of all engines'),
    icon: djinnIcon,
    execute: () => app.shell.activateById(sidebar)
  });
  return DisposableSet.from([
    show,
    ...moves(service, trans).map(move => addMove(commands, service, move)),
    ...sessionCommands(app, service, trans),
    followModel(service, commands)
  ]);
}

function followModel(service: IDjinn, commands: CommandRegistry): IDisposable {
  const { body } = document;
  const { model } = service;
  const changed = (): void => {
    body.dataset.djinnStopped = String(model.stopped);
    body.dataset.djinnRunning = String(model.session?.described.state === 'running');
    [...MOVES, ...SESSION_COMMANDS].forEach(id => commands.notifyCommandChanged(id));
  };
  model.stateChanged.connect(changed);
  return new DisposableDelegate(() => {
    model.stateChanged.disconnect(changed);
    delete body.dataset.djinnStopped;
    delete body.dataset.djinnRunning;
  });
}

function moves(service: IDjinn, trans: Trans): Move[] {
  return [
    {
      id: CommandIDs.resume,
      label: trans.__('Resume'),
      icon: runIcon,
      when: 'paused',
      act: place => service.resume(place)
    },
    {
      id: CommandIDs.pause,
      label: trans.__('Pause'),
      icon: pauseIcon,
      when: 'running',
      act: place => service.pause(place)
    },
    {
      id: CommandIDs.step,
      label: trans.__('Step Over a Layer'),
      icon: stepOverIcon,
      when: 'paused',
      act: place => service.step(place, 'layer')
    },
    {
      id: CommandIDs.stepIn,
      label: trans.__('Step Into the Layer'),
      icon: stepIntoIcon,
      when: 'paused',
      act: place => service.step(place, 'point')
    },
    {
      id: CommandIDs.stepToken,
      label: trans.__('Step a Token'),
      icon: fastForwardIcon,
      when: 'paused',
      act: place => service.step(place, 'token')
    },
    {
      id: CommandIDs.back,
      label: trans.__('Back to the Stop Before'),
      icon: backIcon,
      when: 'paused',
      act: place => service.back(place)
    }
  ];
}

function addMove(commands: CommandRegistry, service: IDjinn, move: Move): IDisposable {
  return commands.addCommand(move.id, {
    label: move.label,
    caption: move.label,
    icon: move.icon,
    isEnabled: args => {
      const place = named(service, args);
      return reached(service.model.live, place)?.described.state === move.when;
    },
    execute: args => {
      const place = named(service, args);
      return place ? move.act(place) : undefined;
    }
  });
}

function sessionCommands(
  { commands }: JupyterFrontEnd,
  service: IDjinn,
  trans: Trans
): IDisposable[] {
  const add = (
    id: string,
    label: string,
    act: (place: Place) => Promise<unknown>,
    when: (session: LiveSession) => boolean = () => true,
    seek = reached
  ): IDisposable =>
    commands.addCommand(id, {
      label,
      isEnabled: args => {
        const session = seek(service.model.live, named(service, args));
        return session !== null && when(session);
      },
      execute: args => {
        const place = named(service, args);
        return place ? act(place) : undefined;
      }
    });
  return [
    add(
      CommandIDs.openNotebook,
      trans.__('Open the Notebook of the Session'),
      async place => {
        const path = find(service.model.live, place)?.notebook;
        return path ? commands.execute('docmanager:open', { path }) : undefined;
      },
      ({ notebook }) => notebook !== null,
      find
    ),
    add(
      CommandIDs.insertAttachCell,
      trans.__('Insert a Cell that Attaches to the Session'),
      place => insertAttachCell(commands, service, trans, place)
    ),
    add(CommandIDs.fork, trans.__('Fork the Session\u2026'), place => fork(service, trans, place)),
    add(
      CommandIDs.swapOut,
      trans.__('Move the Session out of the Device'),
      place => service.swap(place, 'out'),
      canLeave
    ),
    add(
      CommandIDs.swapIn,
      trans.__('Bring the Session Back to the Device'),
      place => service.swap(place, 'in'),
      canReturn
    ),
    add(
      CommandIDs.acceptRecomputed,
      trans.__('Accept the Session as It Was Recomputed'),
      place => service.acceptRecomputed(place),
      ({ described }) => described.exactness === 'recomputed'
    ),
    add(
      CommandIDs.clearBreakpoints,
      trans.__('Remove All Breakpoints of the Session'),
      place => service.clearBreakpoints(place, null),
      ({ described }) => described.breakpoints.length > 0
    ),
    add(CommandIDs.close, trans.__('Close the Session\u2026'), place =>
      close(service, trans, place)
    ),
    commands.addCommand(CommandIDs.stopEngine, {
      label: trans.__('Stop the Engine\u2026'),
      isEnabled: args => {
        const engine = engineOf(service, args);
        return engine !== null && !isDown(service.model.live.engines[engine]);
      },
      execute: args => {
        const engine = engineOf(service, args);
        return engine ? stopEngine(service, trans, engine) : undefined;
      }
    })
  ];
}

/** The session that `args` name, else the chosen one. */
function named(service: IDjinn, args: ReadonlyPartialJSONObject): Place | null {
  const { engine, session } = args;
  return typeof engine === 'string' && typeof session === 'string'
    ? { engine, session }
    : service.model.chosen;
}

function engineOf(service: IDjinn, args: ReadonlyPartialJSONObject): string | null {
  return typeof args.engine === 'string' ? args.engine : (service.model.chosen?.engine ?? null);
}

async function insertAttachCell(
  commands: CommandRegistry,
  service: IDjinn,
  trans: Trans,
  place: Place
): Promise<void> {
  const below = 'notebook:insert-cell-below';
  if (!commands.hasCommand(below) || !commands.isEnabled(below)) {
    const text = trans.__(
      'No notebook is in front. Show the one that the cell is for, then insert it.'
    );
    service.model.refuse({ ...place, about: 'attach' }, text);
    return;
  }
  const { load } = service.model.live.engines[place.engine].found;
  await commands.execute(below);
  await commands.execute('notebook:replace-selection', { text: attachCell(load, place.session) });
  service.model.withdraw({ ...place, about: 'attach' });
}

async function fork(service: IDjinn, trans: Trans, place: Place): Promise<void> {
  const label = find(service.model.live, place)?.label ?? place.session;
  const result = await InputDialog.getText({
    title: trans.__('Fork %1', label),
    label: trans.__('Name of the new session'),
    text: `${label}-fork`,
    okLabel: trans.__('Fork')
  });
  if (result.button.accept && result.value) {
    await service.fork(place, result.value);
  }
}

async function close(service: IDjinn, trans: Trans, place: Place): Promise<void> {
  const session = find(service.model.live, place);
  const label = session?.label ?? place.session;
  const progress = session?.described.progress ?? null;
  const sure = await showDialog({
    title: progress ? trans.__('End %1?', label) : trans.__('Close %1?', label),
    body: progress
      ? trans.__('It is %1. %2', progressText(progress, trans), keptText(progress, trans))
      : trans.__(
          'Its tokens, breakpoints and stops are forgotten, and the memory that it holds is freed.'
        ),
    buttons: [
      Dialog.cancelButton(),
      Dialog.warnButton({ label: progress ? trans.__('End') : trans.__('Close') })
    ]
  });
  if (sure.button.accept) {
    const subject = { ...place, about: 'close' };
    await despiteOthers(trans, force => service.close(place, force), trans.__('Close')).then(
      () => service.model.withdraw(subject),
      error => service.model.refuse(subject, reasonOf(error))
    );
  }
}

/** Send the request without force. Where others would suffer, ask the person, then force it. Rejects otherwise. */
async function despiteOthers(
  trans: Trans,
  ask: (force: boolean) => Promise<void>,
  label: string
): Promise<void> {
  try {
    await ask(false);
  } catch (error) {
    if (!(error instanceof Error) || error.name !== 'SessionsWouldSuffer') {
      throw error;
    }
    const harm = await showDialog({
      title: trans.__('Other notebooks would suffer'),
      body: reasonOf(error),
      buttons: [
        Dialog.cancelButton(),
        Dialog.warnButton({ label: trans.__('%1 all the same', label) })
      ]
    });
    if (harm.button.accept) {
      await ask(true);
    }
  }
}

async function stopEngine(service: IDjinn, trans: Trans, engine: string): Promise<void> {
  const model = service.model.live.engines[engine]?.found.model ?? engine;
  const sure = await showDialog({
    title: trans.__('Stop the engine of %1?', model),
    body: trans.__(
      'The model leaves memory. Its sessions come back when it is loaded again, unless the engine keeps no journal.'
    ),
    buttons: [Dialog.cancelButton(), Dialog.warnButton({ label: trans.__('Stop') })]
  });
  if (sure.button.accept) {
    const stop = (force: boolean): Promise<void> => service.stopEngine(engine, force);
    await despiteOthers(trans, stop, trans.__('Stop')).catch(error =>
      showErrorMessage(trans.__('The engine was not stopped'), reasonOf(error))
    );
  }
}
