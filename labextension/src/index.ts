/* The plugins. None requires JupyterLab's own shell, so Notebook 7 loads them too. All end with the service. */

import { ILayoutRestorer, JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { ICommandPalette } from '@jupyterlab/apputils';
import { IDocumentManager } from '@jupyterlab/docmanager';
import { IRenderMimeRegistry } from '@jupyterlab/rendermime';
import { IRunningSessionManagers } from '@jupyterlab/running';
import { ISettingRegistry } from '@jupyterlab/settingregistry';
import { IStateDB } from '@jupyterlab/statedb';
import { ITranslator, nullTranslator } from '@jupyterlab/translation';
import { IDisposable } from '@lumino/disposable';

import { version } from '../package.json';
import { addCommands } from './application/commands';
import { Front } from './application/front';
import { findGraphs } from './application/kept';
import { drawCharts } from './application/charts';
import { drawGraphs } from './application/outputs';
import { stopAtTokens } from './application/texts';
import { RunningEngines } from './application/running';
import { SIDEBAR_ID, Sidebar } from './application/sidebar';
import { PageState } from './application/state';
import { CommandIDs, MOVES, SESSION_COMMANDS } from './panels/names';
import { ServerChannel } from './service/serverchannel';
import { DjinnService } from './service/service';
import { IDjinn, ISidebar } from './tokens';

/** Dispose these with the service. */
function endWith(djinn: IDjinn, ...subscribed: readonly (IDisposable | undefined)[]): void {
  djinn.disposed.connect(() => subscribed.forEach(one => one?.dispose()));
}

const service: JupyterFrontEndPlugin<IDjinn> = {
  id: 'djinn-jupyter:service',
  description: 'Speaks with the Djinn server extension and keeps its state.',
  autoStart: true,
  provides: IDjinn,
  activate: app => new DjinnService(new ServerChannel(app.serviceManager.serverSettings), version)
};

const sidebar: JupyterFrontEndPlugin<ISidebar> = {
  id: 'djinn-jupyter:sidebar',
  description: 'The sidebar and its commands.',
  autoStart: true,
  provides: ISidebar,
  requires: [IDjinn],
  optional: [ITranslator, ICommandPalette, ILayoutRestorer],
  activate: (
    app: JupyterFrontEnd,
    djinn: IDjinn,
    translator: ITranslator | null,
    palette: ICommandPalette | null,
    restorer: ILayoutRestorer | null
  ) => {
    const spoken = translator ?? nullTranslator;
    const trans = spoken.load('djinn_jupyter');
    const commands = addCommands(app, djinn, trans, SIDEBAR_ID);
    const panel = new Sidebar({
      commands: app.commands,
      props: { service: djinn, trans },
      translator: spoken
    });
    app.shell.add(panel, 'right', { rank: 300 });
    restorer?.add(panel, SIDEBAR_ID);
    const { show, stopEngine } = CommandIDs;
    const items = [show, ...MOVES, ...SESSION_COMMANDS, stopEngine].map(command =>
      palette?.addItem({ command, category: trans.__('Djinn') })
    );
    endWith(djinn, panel, commands, ...items);
    return panel;
  }
};

const focus: JupyterFrontEndPlugin<void> = {
  id: 'djinn-jupyter:focus',
  description: 'Follows the notebook in front: its session is shown, and engines are told.',
  autoStart: true,
  requires: [IDjinn, IDocumentManager],
  activate: (app: JupyterFrontEnd, djinn: IDjinn, documents: IDocumentManager) => {
    const front = new Front(djinn);
    const follow = (): void => {
      const { currentWidget } = app.shell;
      front.show((currentWidget && documents.contextForWidget(currentWidget)) ?? null);
    };
    app.shell.currentChanged?.connect(follow, front);
    void app.restored.then(follow);
    endWith(djinn, front);
  }
};

const running: JupyterFrontEndPlugin<void> = {
  id: 'djinn-jupyter:running',
  description: 'Engines and sessions among what is running.',
  autoStart: true,
  requires: [IDjinn, ISidebar],
  optional: [IRunningSessionManagers, ITranslator],
  activate: (
    app: JupyterFrontEnd,
    djinn: IDjinn,
    _: ISidebar,
    managers: IRunningSessionManagers | null,
    translator: ITranslator | null
  ) => {
    const trans = (translator ?? nullTranslator).load('djinn_jupyter');
    const list = new RunningEngines(djinn, app.commands.execute.bind(app.commands), trans);
    endWith(djinn, managers?.add(list));
  }
};

const settings: JupyterFrontEndPlugin<void> = {
  id: 'djinn-jupyter:settings',
  description: 'Reads the settings of the sidebar.',
  autoStart: true,
  requires: [IDjinn, ISettingRegistry],
  activate: async (_: JupyterFrontEnd, djinn: IDjinn, registry: ISettingRegistry) => {
    const read = await registry.load('djinn-jupyter:sidebar');
    const apply = (): void => {
      djinn.model.preferences = read.composite as unknown as IDjinn.IPreferences;
    };
    if (!djinn.isDisposed) {
      read.changed.connect(apply, djinn); // disconnected with the service, which clears its signals
      apply();
    }
  }
};

const outputs: JupyterFrontEndPlugin<void> = {
  id: 'djinn-jupyter:outputs',
  description:
    'Draws graphs of edges and charts in the outputs of cells, and makes the tokens of texts there set breakpoints.',
  autoStart: true,
  requires: [IDjinn, IRenderMimeRegistry],
  optional: [ITranslator],
  activate: (
    _: JupyterFrontEnd,
    djinn: IDjinn,
    registry: IRenderMimeRegistry,
    translator: ITranslator | null
  ) => {
    const trans = (translator ?? nullTranslator).load('djinn_jupyter');
    endWith(djinn, drawGraphs(registry, { service: djinn, trans }));
    endWith(djinn, drawCharts(registry));
    endWith(djinn, stopAtTokens(djinn));
  }
};

const kept: JupyterFrontEndPlugin<void> = {
  id: 'djinn-jupyter:kept',
  description: 'Finds the graphs that a notebook has kept in its outputs.',
  autoStart: true,
  requires: [IDjinn, IDocumentManager],
  activate: (app: JupyterFrontEnd, djinn: IDjinn, documents: IDocumentManager) => {
    const find = (): void => {
      const { currentWidget } = app.shell;
      const context = currentWidget && documents.contextForWidget(currentWidget);
      void context?.ready.then(() => findGraphs(context.model, djinn));
    };
    app.shell.currentChanged?.connect(find, djinn); // disconnected with the service, which clears its signals
    void app.restored.then(find);
  }
};

const state: JupyterFrontEndPlugin<void> = {
  id: 'djinn-jupyter:state',
  description: 'Remembers the chosen session and the folded panels over a reload.',
  autoStart: true,
  requires: [IDjinn, ISidebar, IStateDB],
  activate: (_: JupyterFrontEnd, djinn: IDjinn, panel: ISidebar, states: IStateDB) => {
    const page = new PageState(djinn, panel, states);
    endWith(djinn, page);
    // Not awaited: the state is readable only after the application has started, which waits for this.
    void page.restore();
  }
};

export default [service, sidebar, focus, running, settings, outputs, kept, state];
export { IDjinn, ISidebar };
