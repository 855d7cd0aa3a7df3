/* The sidebar: a toolbar of moves above, panels below one another as in JupyterLab's own debugger. */

import { ITranslator } from '@jupyterlab/translation';
import { CommandToolbarButton, ReactWidget, SidePanel } from '@jupyterlab/ui-components';
import { CommandRegistry } from '@lumino/commands';
import * as React from 'react';

import { MOVES } from './commands';
import { djinnIcon } from './icons';
import { PanelProps, panelOf } from './panels/react';
import { Sessions } from './panels/sessions';

export const SIDEBAR_ID = 'djinn-sidebar';

export class Sidebar extends SidePanel {
  constructor(options: { commands: CommandRegistry; props: PanelProps; translator: ITranslator }) {
    super({ translator: options.translator });
    const { commands, props } = options;
    const { trans } = props;
    this.id = SIDEBAR_ID;
    this.addClass('djinn-Sidebar');
    this.title.icon = djinnIcon;
    this.title.caption = trans.__('Djinn: sessions, breakpoints, memory');
    this.node.setAttribute('role', 'region');
    this.node.setAttribute('aria-label', trans.__('Djinn'));
    this.toolbar.node.setAttribute('aria-label', trans.__('Moves of the chosen session'));
    for (const id of MOVES) {
      this.toolbar.addItem(id, new CommandToolbarButton({ commands, id, label: '' }));
    }
    for (const panel of this._panels(commands, props)) {
      this.addWidget(panel);
    }
  }

  private _panels(commands: CommandRegistry, props: PanelProps): ReactWidget[] {
    const { trans } = props;
    const execute = commands.execute.bind(commands);
    return [
      panelOf(own => React.createElement(Sessions, { ...own, execute }), props, {
        id: 'djinn-sessions',
        title: trans.__('Sessions'),
        className: 'djinn-Sessions'
      })
    ];
  }
}
