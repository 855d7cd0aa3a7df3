/* The sidebar: a toolbar of moves, and panels below it, as in JupyterLab's own debugger. */

import { ITranslator } from '@jupyterlab/translation';
import { CommandToolbarButton, ReactWidget, SidePanel } from '@jupyterlab/ui-components';
import { CommandRegistry } from '@lumino/commands';
import { Message } from '@lumino/messaging';
import { ISignal } from '@lumino/signaling';
import { AccordionPanel, Widget } from '@lumino/widgets';
import * as React from 'react';

import { ISidebar } from '../tokens';
import { shareHeight } from './heights';
import { djinnIcon } from '../panels/icons';
import { MOVES } from '../panels/names';
import { Activation } from '../panels/activation';
import { Breakpoints } from '../panels/breakpoints';
import { Edges } from '../panels/graph';
import { Memory } from '../panels/memory';
import { Modules } from '../panels/modules';
import { PanelProps, panelOf } from '../panels/react';
import { Sessions } from '../panels/sessions';
import { Stops } from '../panels/stops';

export const SIDEBAR_ID = 'djinn-sidebar';

/** The weights of the panels, in order, until a person drags the borders. */
const WEIGHTS = [1.2, 1, 1, 1, 1.5, 1, 0.8];

export class Sidebar extends SidePanel implements ISidebar {
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
    this.foldedChanged.connect(this._share, this);
    (this.content as AccordionPanel).handleMoved.connect(this._onDrag, this);
    this.content.widgets.forEach(({ node }) => this._drawn.observe(node, { childList: true }));
  }

  override dispose(): void {
    if (this.isDisposed) {
      return;
    }
    this._drawn.disconnect();
    this._resized.disconnect();
    super.dispose();
  }

  protected override onAfterAttach(msg: Message): void {
    super.onAfterAttach(msg);
    this._share();
  }

  /** Takes the focus, so that Tab reaches its first button. */
  protected override onActivateRequest(msg: Message): void {
    super.onActivateRequest(msg);
    this.node.tabIndex = -1;
    this.node.focus();
  }

  /** The folded panels, by id. */
  get folded(): string[] {
    const { widgets } = this.content;
    return widgets.filter(widget => widget.isHidden).map(({ id }) => id);
  }

  set folded(ids: readonly string[]) {
    const content = this.content as AccordionPanel;
    content.widgets.forEach((widget, index) => {
      if (ids.includes(widget.id)) {
        content.collapse(index);
      } else {
        content.expand(index);
      }
    });
  }

  get foldedChanged(): ISignal<AccordionPanel, number> {
    return (this.content as AccordionPanel).expansionToggled;
  }

  protected override onResize(msg: Widget.ResizeMessage): void {
    super.onResize(msg);
    this._share();
  }

  /**
   * Share the height among the open panels by their contents, until a person drags a border. The accordion itself gives
   * no height to a panel that was folded early.
   */
  private _share(): void {
    const content = this.content as AccordionPanel;
    if (this._dragged || !content.isVisible) {
      return;
    }
    const wishes = content.widgets.map((widget, index) => ({
      height: widget.isHidden ? 0 : wanted(widget),
      weight: WEIGHTS[index]
    }));
    const titles = content.titles.reduce((total, title) => total + title.offsetHeight, 0);
    content.setRelativeSizes(shareHeight(wishes, content.node.clientHeight - titles));
  }

  private _onDrag(): void {
    this._dragged = true;
  }

  private _panels(commands: CommandRegistry, props: PanelProps): ReactWidget[] {
    const { trans } = props;
    const execute = commands.execute.bind(commands);
    return [
      panelOf(own => React.createElement(Sessions, { ...own, execute }), props, {
        id: 'djinn-sessions',
        title: trans.__('Sessions'),
        className: 'djinn-Sessions'
      }),
      panelOf(Breakpoints, props, {
        id: 'djinn-breakpoints',
        title: trans.__('Breakpoints'),
        className: 'djinn-Breakpoints'
      }),
      panelOf(Stops, props, {
        id: 'djinn-stops',
        title: trans.__('Stops and forks'),
        className: 'djinn-Stops'
      }),
      panelOf(Modules, props, {
        id: 'djinn-model',
        title: trans.__('Model'),
        className: 'djinn-Modules'
      }),
      panelOf(Activation, props, {
        id: 'djinn-activation',
        title: trans.__('Activation'),
        className: 'djinn-Activation'
      }),
      panelOf(Edges, props, {
        id: 'djinn-edges',
        title: trans.__('Edges'),
        className: 'djinn-Edges'
      }),
      panelOf(Memory, props, {
        id: 'djinn-memory',
        title: trans.__('Memory'),
        className: 'djinn-Memory'
      })
    ];
  }
  private readonly _resized = new ResizeObserver(() => this._share());
  /** React draws a panel's content after the panel was added. */
  private readonly _drawn = new MutationObserver(changes =>
    changes
      .flatMap(({ addedNodes }) => [...addedNodes])
      .forEach(node => node instanceof Element && this._resized.observe(node))
  );
  private _dragged = false;
}

/** The height of a panel's whole content, including the part scrolled away; one line if empty. */
function wanted({ node }: Widget): number {
  const content = node.querySelector<HTMLElement>('.djinn-Panel-content');
  return Math.max(24, content?.offsetHeight ?? 0);
}
