/* The plugins. Nothing here asks for JupyterLab's own shell, so that Notebook 7 loads them too. */

import { ILayoutRestorer, JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { ICommandPalette } from '@jupyterlab/apputils';
import { IDocumentManager } from '@jupyterlab/docmanager';
import { ITranslator, nullTranslator } from '@jupyterlab/translation';

import { version } from '../package.json';
import { CommandIDs, MOVES, addCommands } from './commands';
import { SIDEBAR_ID, Sidebar } from './sidebar';
import { ServerLine } from './serverline';
import { DjinnService } from './service';
import { IDjinn } from './tokens';

const service: JupyterFrontEndPlugin<DjinnService> = {
  id: 'djinn-jupyter:service',
  description: 'Speaks with the Djinn server extension and keeps what it says.',
  autoStart: true,
  provides: IDjinn,
  activate: app => new DjinnService(new ServerLine(app.serviceManager.serverSettings), version)
};

const sidebar: JupyterFrontEndPlugin<void> = {
  id: 'djinn-jupyter:sidebar',
  description: 'The sidebar and its commands.',
  autoStart: true,
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
    const { openNotebook, insertAttachCell, fork, close, stopEngine, show } = CommandIDs;
    for (const command of [
      show,
      ...MOVES,
      openNotebook,
      insertAttachCell,
      fork,
      close,
      stopEngine
    ]) {
      palette?.addItem({ command, category: trans.__('Djinn') });
    }
  }
};

const focus: JupyterFrontEndPlugin<void> = {
  id: 'djinn-jupyter:focus',
  description: 'Follows the notebook in front: its session is shown, and engines are told.',
  autoStart: true,
  requires: [IDjinn, IDocumentManager],
  activate: (app: JupyterFrontEnd, djinn: DjinnService, documents: IDocumentManager) => {
    const follow = (): void => {
      const { currentWidget } = app.shell;
      const path = currentWidget ? documents.contextForWidget(currentWidget)?.path : null;
      djinn.focus(path?.endsWith('.ipynb') ? path : null);
    };
    app.shell.currentChanged?.connect(follow);
    void app.restored.then(follow);
  }
};

export default [service, sidebar, focus];
export { IDjinn };
