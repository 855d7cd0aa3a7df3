/* JupyterLab's icons and React widget, as far as the panels use them: the real ones need a browser and half of the lab. */

import * as React from 'react';

export class LabIcon {
  constructor(readonly options: { name: string; svgstr: string }) {}

  readonly react = (): React.JSX.Element => <span data-icon={this.options.name} />;
}

export class ReactWidget {}

const named = (name: string): LabIcon => new LabIcon({ name, svgstr: '' });

export const addBelowIcon = named('add-below');
export const caretDownIcon = named('caret-down');
export const caretRightIcon = named('caret-right');
export const closeIcon = named('close');
export const copyIcon = named('copy');
export const editIcon = named('edit');
export const notebookIcon = named('notebook');
export const stopIcon = named('stop');
