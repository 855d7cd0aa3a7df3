/* The tokens of a text by keyboard. Tab moves the focus to a token of the text and shows its numbers; arrows, Home and
   End move it along the tokens, and Enter or Space does what a click does. */

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
  const onFocus = ({ target }: Event): void => {
    const text = ifMatching(target, TEXT);
    const token = ifMatching(target, TOKEN);
    if (text !== null) {
      focusToken(
        text.querySelector<HTMLElement>(`${TOKEN}[tabindex]`) ?? text.querySelector(TOKEN)
      );
    } else if (token !== null) {
      showNumbers(numbers, token);
    }
  };
  const onLeave = ({ target }: Event): void => {
    numbers.remove();
    ifMatching(target, TOKEN)?.closest(TEXT)?.setAttribute('tabindex', '0');
  };
  const onKey = (event: KeyboardEvent): void => {
    const token = ifMatching(event.target, TOKEN);
    const plain = !(event.ctrlKey || event.metaKey || event.altKey || event.shiftKey);
    if (token !== null && plain && actOnKey(token, event.key, press)) {
      event.preventDefault();
      event.stopImmediatePropagation(); // or the notebook selects another cell
    }
  };
  document.addEventListener('focusin', onFocus);
  document.addEventListener('focusout', onLeave);
  window.addEventListener('keydown', onKey, true); // before JupyterLab's own, which is the document's
  return new DisposableDelegate(() => {
    document.removeEventListener('focusin', onFocus);
    document.removeEventListener('focusout', onLeave);
    window.removeEventListener('keydown', onKey, true);
    numbers.remove();
  });
}

/** The target, where it is an element that matches. */
function ifMatching(target: EventTarget | null, selector: string): HTMLElement | null {
  return target instanceof HTMLElement && target.matches(selector) ? target : null;
}

/** Focus a token, the only one of its text in the order of Tab. */
function focusToken(token: HTMLElement | null): void {
  const text = token?.closest<HTMLElement>(TEXT);
  text?.querySelectorAll(`${TOKEN}[tabindex]`).forEach(one => one.removeAttribute('tabindex'));
  text?.setAttribute('tabindex', '-1');
  token?.setAttribute('tabindex', '0');
  token?.setAttribute('role', 'button');
  token?.setAttribute('aria-label', `${token.textContent}, ${token.title}`);
  token?.focus();
}

/** Move the focus, or press the token, and return true; false for any other key. */
function actOnKey(token: HTMLElement, key: string, press: (token: HTMLElement) => void): boolean {
  const by = MOVES.get(key);
  if (key === 'Enter' || key === ' ') {
    press(token);
  } else if (by !== undefined) {
    const all = [...(token.closest(TEXT)?.querySelectorAll<HTMLElement>(TOKEN) ?? [])];
    focusToken(all[Math.min(Math.max(all.indexOf(token) + by, 0), all.length - 1)]);
  }
  return by !== undefined || key === 'Enter' || key === ' ';
}

/** Show the numbers of a token, which the pointer also shows, below it or above it. */
function showNumbers(numbers: HTMLElement, token: HTMLElement): void {
  numbers.textContent = token.title;
  document.body.appendChild(numbers);
  const { left, top, bottom } = token.getBoundingClientRect();
  const { width, height } = numbers.getBoundingClientRect();
  const below = bottom + height + 4 < window.innerHeight;
  numbers.style.left = `${Math.max(0, Math.min(left, window.innerWidth - width))}px`;
  numbers.style.top = `${below ? bottom + 4 : top - height - 4}px`;
}
