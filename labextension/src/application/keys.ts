/* The tokens of a text by keyboard. Tab comes to the text and stands on a token, whose numbers are then in sight; the
   arrows, Home and End move along the tokens, and Enter or Space does what a click does. */

import { DisposableDelegate, IDisposable } from '@lumino/disposable';

export const TEXT = '[data-djinn-session]';
export const TOKEN = '[data-djinn-at]';
const MOVES = new Map([
  ['ArrowRight', 1],
  ['ArrowLeft', -1],
  ['Home', -Infinity],
  ['End', Infinity]
]);

/** Let the keyboard reach the tokens of all texts on this page. Dispose the result to undo it. */
export function tokensByKeyboard(press: (token: HTMLElement) => void): IDisposable {
  const numbers = document.createElement('div');
  numbers.className = 'djinn-Token-numbers';
  const focus = ({ target }: Event): void => {
    const text = matching(target, TEXT);
    const token = matching(target, TOKEN);
    if (text !== null) {
      stand(text.querySelector<HTMLElement>(`${TOKEN}[tabindex]`) ?? text.querySelector(TOKEN));
    } else if (token !== null) {
      show(numbers, token);
    }
  };
  const leave = ({ target }: Event): void => {
    numbers.remove();
    matching(target, TOKEN)?.closest(TEXT)?.setAttribute('tabindex', '0');
  };
  const key = (event: KeyboardEvent): void => {
    const token = matching(event.target, TOKEN);
    const plain = !(event.ctrlKey || event.metaKey || event.altKey || event.shiftKey);
    if (token !== null && plain && move(token, event.key, press)) {
      event.preventDefault();
      event.stopImmediatePropagation(); // or the notebook selects another cell
    }
  };
  document.addEventListener('focusin', focus);
  document.addEventListener('focusout', leave);
  window.addEventListener('keydown', key, true); // before JupyterLab's own, which is the document's
  return new DisposableDelegate(() => {
    document.removeEventListener('focusin', focus);
    document.removeEventListener('focusout', leave);
    window.removeEventListener('keydown', key, true);
    numbers.remove();
  });
}

function matching(target: EventTarget | null, selector: string): HTMLElement | null {
  return target instanceof HTMLElement && target.matches(selector) ? target : null;
}

/** Put the focus on a token; Shift and Tab leave the text from it. */
function stand(token: HTMLElement | null): void {
  const text = token?.closest<HTMLElement>(TEXT);
  text?.querySelectorAll(`${TOKEN}[tabindex]`).forEach(one => one.removeAttribute('tabindex'));
  text?.setAttribute('tabindex', '-1');
  token?.setAttribute('tabindex', '0');
  token?.setAttribute('role', 'button');
  token?.setAttribute('aria-label', `${token.textContent}, ${token.title}`);
  token?.focus();
}

/** Return whether the key is one of these. */
function move(token: HTMLElement, key: string, press: (token: HTMLElement) => void): boolean {
  const by = MOVES.get(key);
  if (key === 'Enter' || key === ' ') {
    press(token);
  } else if (by !== undefined) {
    const all = [...(token.closest(TEXT)?.querySelectorAll<HTMLElement>(TOKEN) ?? [])];
    stand(all[Math.min(Math.max(all.indexOf(token) + by, 0), all.length - 1)]);
  }
  return by !== undefined || key === 'Enter' || key === ' ';
}

/** Show what the pointer would show, below the token or above it. */
function show(numbers: HTMLElement, token: HTMLElement): void {
  numbers.textContent = token.title;
  document.body.appendChild(numbers);
  const { left, top, bottom } = token.getBoundingClientRect();
  const { width, height } = numbers.getBoundingClientRect();
  const below = bottom + height + 4 < window.innerHeight;
  numbers.style.left = `${Math.max(0, Math.min(left, window.innerWidth - width))}px`;
  numbers.style.top = `${below ? bottom + 4 : top - height - 4}px`;
}
