/* Small parts that several panels draw. */

import { LabIcon } from '@jupyterlab/ui-components';
import * as React from 'react';

interface ActionProps {
  readonly icon: LabIcon;
  readonly label: string;
  readonly act: () => unknown;
  readonly disabled?: boolean;
}

/** A small button with an icon, named for those who cannot see it. */
export function Action({ icon, label, act, disabled }: ActionProps): React.JSX.Element {
  return (
    <button
      className="djinn-iconButton"
      title={label}
      aria-label={label}
      disabled={disabled}
      onClick={act}
    >
      <icon.react tag="span" className="djinn-iconButton-icon" width="14px" height="14px" />
    </button>
  );
}

/** What a panel says when it has nothing to show. */
export function Empty({ children }: { children: React.ReactNode }): React.JSX.Element {
  return <p className="djinn-soft djinn-Empty">{children}</p>;
}

/** A bar that is `share` of its frame. The number beside it says the same. */
export function Meter({ share }: { share: number }): React.JSX.Element {
  const width = `${100 * Math.min(1, Math.max(0, share))}%`;
  return (
    <span className="djinn-Meter" aria-hidden="true">
      <span style={{ width }} />
    </span>
  );
}

/** Whether the element is in sight: in a panel that is open, in a sidebar that is shown. */
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
