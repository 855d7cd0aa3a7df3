/* React widgets that draw again when the model changes. */

import { ReactWidget } from '@jupyterlab/ui-components';
import * as React from 'react';

import { IDjinn } from '../tokens';

/** The properties of every panel. */
export interface PanelProps {
  readonly service: IDjinn;
  readonly trans: Trans;
}

/** The part of JupyterLab's TranslationBundle that the panels use. */
export interface Trans {
  __(text: string, ...values: (string | number)[]): string;
  _n(one: string, many: string, count: number, ...values: (string | number)[]): string;
}

/** Draw the component again at each change of the model, at most once a frame. */
export function useModel(service: IDjinn): IDjinn.IModel {
  const [, draw] = React.useReducer((count: number) => count + 1, 0);
  React.useEffect(() => {
    let frame = 0;
    const changed = (): void => {
      cancelAnimationFrame(frame);
      frame = requestAnimationFrame(draw);
    };
    service.model.stateChanged.connect(changed);
    draw();
    return () => {
      cancelAnimationFrame(frame);
      service.model.stateChanged.disconnect(changed);
    };
  }, [service]);
  return service.model;
}

/** Draw again every `seconds` while the page is visible, for idle times and the like. */
export function useClock(seconds: number): number {
  const [now, setNow] = React.useState(() => Date.now() / 1000);
  React.useEffect(() => {
    const timer = window.setInterval(() => {
      if (document.visibilityState === 'visible') {
        setNow(Date.now() / 1000);
      }
    }, 1000 * seconds);
    return () => window.clearInterval(timer);
  }, [seconds]);
  return now;
}

/** The name of JupyterLab's theme, for drawings that use its colours without its style sheet. */
export function useTheme(): string | undefined {
  const { body } = document;
  const [theme, setTheme] = React.useState(body.dataset.jpThemeName);
  React.useEffect(() => {
    const observer = new MutationObserver(() => setTheme(body.dataset.jpThemeName));
    observer.observe(body, { attributeFilter: ['data-jp-theme-name'] });
    return () => observer.disconnect();
  }, [body]);
  return theme;
}

/** A panel of the sidebar. */
export function panelOf(
  component: (props: PanelProps) => React.JSX.Element,
  props: PanelProps,
  options: { readonly id: string; readonly title: string; readonly className: string }
): ReactWidget {
  const shown = React.createElement(component, props);
  const widget = ReactWidget.create(
    React.createElement('div', { className: 'djinn-Panel-content' }, shown)
  );
  widget.id = options.id;
  widget.addClass('djinn-Panel');
  widget.addClass(options.className);
  widget.title.label = options.title;
  return widget;
}
