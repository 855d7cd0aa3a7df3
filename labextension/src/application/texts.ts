/* Texts in the outputs of cells: a click on a token, or Enter, sets a breakpoint at its position in the session that was
   read, and a second one removes it. The output is the kernel's own HTML; this page adds the clicks and marks the breakpoints. */

import { DisposableDelegate, IDisposable } from '@lumino/disposable';

import { LiveState, Place, places, reached } from '../models/live';
import { IDjinn } from '../tokens';
import { BreakpointDescription } from '../wire';
import { TEXT, TOKEN, tokensByKeyboard } from './keys';

const AT = /^position == (\d+)$/;

/** Make the tokens of all texts on this page stop their sessions. Dispose the result to undo it. */
export function stopAtTokens(service: IDjinn): IDisposable {
  const style = document.head.appendChild(document.createElement('style'));
  const mark = (): void => {
    style.textContent = tokenStyles(service.model.live);
  };
  const press = (token: HTMLElement): void => {
    const text = token.closest<HTMLElement>(TEXT);
    if (text !== null) {
      toggle(service, text.dataset, `position == ${Number(token.dataset.djinnAt)}`);
    }
  };
  const click = ({ target }: Event): void => {
    const token = target instanceof Element ? target.closest<HTMLElement>(TOKEN) : null;
    if (token !== null) {
      press(token);
    }
  };
  const keys = tokensByKeyboard(press);
  service.model.stateChanged.connect(mark);
  document.addEventListener('click', click);
  mark();
  return new DisposableDelegate(() => {
    service.model.stateChanged.disconnect(mark);
    document.removeEventListener('click', click);
    keys.dispose();
    style.remove();
  });
}

function toggle(
  service: IDjinn,
  { djinnEngine, djinnSession, djinnSite }: DOMStringMap,
  when: string
): void {
  const place = { engine: djinnEngine ?? '', session: djinnSession ?? '' };
  const session = reached(service.model.live, place);
  if (session === null || djinnSite === undefined) {
    return;
  }
  const set = session.described.breakpoints.find(
    one => one.site === djinnSite && one.when === when
  );
  void (set === undefined
    ? service.setBreakpoint(place, djinnSite, when)
    : service.clearBreakpoints(place, [set.number], `breakpoint at ${djinnSite} when ${when}`));
}

/** The styles of tokens that a click reaches, and of those with a breakpoint. They outweigh a card's own. */
function tokenStyles(live: LiveState): string {
  return places(live)
    .filter(({ place }) => reached(live, place) !== null)
    .flatMap(({ place, session }) => [
      `${selectorOf(place)} ${TOKEN}${TOKEN}{cursor:pointer}`,
      `${selectorOf(place)} ${TOKEN}:focus-visible{box-shadow:0 0 0 2px var(--jp-brand-color1)}`,
      ...session.described.breakpoints.flatMap(one => breakpointStyles(place, one))
    ])
    .join('\n');
}

/** The style of the token at which a breakpoint stops; none for a breakpoint elsewhere. */
function breakpointStyles(place: Place, { site, when }: BreakpointDescription): string[] {
  const at = AT.exec(when ?? '')?.[1];
  const token = `${selectorOf(place)}[data-djinn-site=${quoted(site)}] [data-djinn-at="${at}"]`;
  return at === undefined
    ? []
    : [`${token}{outline:2px solid var(--jp-warn-color1);outline-offset:-1px}`];
}

/** The selector of the texts of a session. */
function selectorOf({ engine, session }: Place): string {
  return `.djinn [data-djinn-engine=${quoted(engine)}][data-djinn-session=${quoted(session)}]`;
}

/** A string of CSS with this text. */
function quoted(value: string): string {
  return `"${value.replace(/["\\\n\r\f\0]/g, one => `\\${one.charCodeAt(0).toString(16)} `)}"`;
}
