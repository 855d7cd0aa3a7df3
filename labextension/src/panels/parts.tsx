/* Small parts that several panels draw. */

import { LabIcon, closeIcon } from '@jupyterlab/ui-components';
import * as React from 'react';

import { Subject, refusalOf } from '../models/refusals';
import { PanelProps, Trans } from './react';

interface ActionProps {
  readonly icon: LabIcon;
  readonly label: string;
  readonly act: () => unknown;
  readonly disabled?: boolean;
  /** The reason why it is disabled. */
  readonly why?: string | null;
  /** For a button that stays down. */
  readonly pressed?: boolean;
}

/** A small button with an icon and an accessible name. */
export function Action({
  icon,
  label,
  act,
  disabled,
  why,
  pressed
}: ActionProps): React.JSX.Element {
  return (
    <button
      className="djinn-iconButton"
      title={why ? `${label}. ${why}` : label}
      aria-label={label}
      aria-pressed={pressed}
      disabled={disabled || !!why}
      onClick={act}
    >
      <icon.react tag="span" className="djinn-iconButton-icon" width="14px" height="14px" />
    </button>
  );
}

/** The text of an empty panel. */
export function Empty({ children }: { children: React.ReactNode }): React.JSX.Element {
  return <p className="djinn-soft djinn-Empty">{children}</p>;
}

interface BadProps {
  readonly text: string;
  readonly dismiss: () => void;
  readonly trans: Trans;
}

/** An error, until the person dismisses it. */
export function Bad({ text, dismiss, trans }: BadProps): React.JSX.Element {
  return (
    <div className="djinn-Notice djinn-mod-bad djinn-Bad">
      <p role="alert">{text}</p>
      <Action icon={closeIcon} label={trans.__('Dismiss')} act={dismiss} />
    </div>
  );
}

/** The error of the last request about `subject`, beside its control; nothing if it succeeded. */
export function Refused({
  subject,
  service,
  trans
}: PanelProps & { readonly subject: Subject }): React.JSX.Element | null {
  const text = refusalOf(service.model.refusals, subject);
  return text === null ? null : (
    <Bad text={text} dismiss={() => service.model.withdraw(subject)} trans={trans} />
  );
}

/** A bar that fills `share` of its frame. The number beside it is the same. */
export function Meter({ share }: { share: number }): React.JSX.Element {
  const width = `${100 * Math.min(1, Math.max(0, share))}%`;
  return (
    <span className="djinn-Meter" aria-hidden="true">
      <span style={{ width }} />
    </span>
  );
}

/** Whether the element is visible: in an open panel of a shown sidebar. */
export function useInSight<T extends Element>(): [React.RefObject<T>, boolean] {
  const ref = React.useRef<T>(null);
  const [seen, setSeen] = React.useState(false);
  React.useEffect(() => {
    if (ref.current === null) {
      return;
    }
    const observer = new IntersectionObserver(entries =>
      setSeen(entries.some(entry => entry.isIntersecting))
    );
    observer.observe(ref.current);
    return () => observer.disconnect();
  }, []);
  return [ref, seen];
}
