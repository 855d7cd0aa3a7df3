/* The plugins. Nothing here asks for JupyterLab's own shell, so that Notebook 7 loads them too. */

import { ILayoutRestorer, JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { ICommandPalette } from '@jupyterlab/apputils';
import { IDocumentManager } from '@jupyterlab/docmanager';
import { IRunningSessionManagers } from '@jupyterlab/running';
import { ISettingRegistry } from '@jupyterlab/settingregistry';
import { IStateDB } from '@jupyterlab/statedb';
import { ITranslator, nullTranslator } from '@jupyterlab/translation';

import { version } from '../package.json';
import { addCommands } from './commands';
import { Front } from './front';
import { Preferences } from './model';
import { CommandIDs, MOVES, SESSION_COMMANDS } from './names';
import { RunningEngines } from './running';
import { SIDEBAR_ID, Sidebar } from './sidebar';
import { ServerLine } from './serverline';
import { DjinnService } from './service';
import { keepState } from './state';
import { IDjinn, ISidebar } from './tokens';

const service: JupyterFrontEndPlugin<DjinnService> = {
  id: 'djinn-jupyter:service',
  description: 'Speaks with the Djinn server extension and keeps what it says.',
  autoStart: true,
  provides: IDjinn,
  activate: app => new DjinnService(new ServerLine(app.serviceManager.serverSettings), version)
};

const sidebar: JupyterFrontEndPlugin<Sidebar> = {
  id: 'djinn-jupyter:sidebar',
  description: 'The sidebar and its commands.',
  autoStart: true,
  provides: ISidebar,
  requires: [IDjinn],
  optional: [ITranslator, ICommandPalette, ILayoutRestorer],
  activate: (
    app: JupyterFrontEnd,
    djinn: DjinnService,
    translator: ITranslator | null,
    palette: ICommandPalette | null,
    restorer: ILayoutRestorer | null
  ) => {
    const spoken = translator ?? nullTranslator;
    const trans = spoken.load('djinn_jupyter');
    addCommands(app, djinn, trans, SIDEBAR_ID);
    const panel = new Sidebar({
      commands: app.commands,
      props: { service: djinn, trans },
      translator: spoken
    });
    app.shell.add(panel, 'right', { rank: 300 });
    restorer?.add(panel, SIDEBAR_ID);
    const { show, stopEngine } = CommandIDs;
    for (const command of [show, ...MOVES, ...SESSION_COMMANDS, stopEngine]) {
      palette?.addItem({ command, category: trans.__('Djinn') });
    }
    return panel;
  }
};

const focus: JupyterFrontEndPlugin<void> = {
  id: 'djinn-jupyter:focus',
  description: 'Follows the notebook in front: its session is shown, and engines are told.',
  autoStart: true,
  requires: [IDjinn, IDocumentManager],
  activate: (app: JupyterFrontEnd, djinn: DjinnService, documents: IDocumentManager) => {
    const front = new Front(djinn);
    const follow = (): void => {
      const { currentWidget } = app.shell;
      front.show((currentWidget && documents.contextForWidget(currentWidget)) ?? null);
    };
    app.shell.currentChanged?.connect(follow);
    void app.restored.then(follow);
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
    djinn: DjinnService,
    _: Sidebar,
    managers: IRunningSessionManagers | null,
    translator: ITranslator | null
  ) => {
    const trans = (translator ?? nullTranslator).load('djinn_jupyter');
    managers?.add(new RunningEngines(djinn, app.commands.execute.bind(app.commands), trans));
  }
};

const settings: JupyterFrontEndPlugin<void> = {
  id: 'djinn-jupyter:settings',
  description: 'Reads the settings of the sidebar.',
  autoStart: true,
  requires: [IDjinn, ISettingRegistry],
  activate: async (_: JupyterFrontEnd, djinn: DjinnService, registry: ISettingRegistry) => {
    const read = await registry.load('djinn-jupyter:sidebar');
    const apply = (): void => {
      djinn.model.preferences = read.composite as unknown as Preferences;
    };
    read.changed.connect(apply);
    apply();
  }
};

const state: JupyterFrontEndPlugin<void> = {
  id: 'djinn-jupyter:state',
  description: 'Remembers the chosen session and the folded panels over a reload.',
  autoStart: true,
  requires: [IDjinn, ISidebar, IStateDB],
  activate: (_: JupyterFrontEnd, djinn: DjinnService, panel: Sidebar, states: IStateDB) => {
    // Not awaited: the state is readable only after the application has started, which waits for this.
    void keepState(djinn, panel, states);
  }
};

export default [service, sidebar, focus, running, settings, state];
export { IDjinn, ISidebar };
