/* What is missing and the remedy: no server extension, no connection, another version, no engine. */

import * as React from 'react';

import { Connection } from '../models/connection';
import { PanelProps, Trans, useModel } from './react';
import { IDjinn } from '../tokens';

interface Said {
  readonly text: string;
  readonly mend?: { readonly label: string; readonly act: () => void };
  readonly code?: string;
}

export function Notice({ service, trans }: PanelProps): React.JSX.Element | null {
  useModel(service);
  const said = missing(service, trans);
  if (said === null) {
    return null;
  }
  return (
    <div className="djinn-Notice" role="status">
      <p>{said.text}</p>
      {said.code && <pre className="djinn-code">{said.code}</pre>}
      {said.mend && (
        <button className="djinn-textButton jp-mod-styled" onClick={said.mend.act}>
          {said.mend.label}
        </button>
      )}
    </div>
  );
}

/** Null when nothing is missing. */
export function missing(service: IDjinn, trans: Trans): Said | null {
  const { connection, live } = service.model;
  const again = { label: trans.__('Try again'), act: () => service.reconnect() };
  switch (connection.kind) {
    case 'absent':
      return {
        text: trans.__(
          'This Jupyter server runs without the Djinn server extension, so the sidebar cannot find engines. Enable it in the environment of the server, then restart the server:'
        ),
        code: 'jupyter server extension enable djinn_jupyter',
        mend: again
      };
    case 'forbidden':
      return {
        text: trans.__(
          'This Jupyter server does not let you use Djinn. Log in again, or ask its owner.'
        ),
        mend: again
      };
    case 'lost':
      return {
        text: trans.__(
          'The connection to the Jupyter server is lost; it is tried again every %1 s. What you see may be old.',
          connection.seconds
        ),
        mend: again
      };
    case 'differs':
      return otherMessages(connection, trans, again);
    case 'connecting':
      return live.current ? null : { text: trans.__('Connecting to the Jupyter server.') };
    case 'open':
      return otherVersion(service, trans);
  }
}

/** A page that has connected before is older than the server; otherwise it is newer. */
function otherMessages(
  { version, spoke }: Extract<Connection, { kind: 'differs' }>,
  trans: Trans,
  again: Said['mend']
): Said {
  if (spoke) {
    return {
      text: trans.__(
        'The Jupyter server was started again with another build of Djinn (djinn-jupyter %1). Reload the page.',
        version
      ),
      mend: reload(trans)
    };
  }
  return {
    text: trans.__(
      'This page has another build of Djinn than the Jupyter server (djinn-jupyter %1). Restart the Jupyter server; where that does not help, install djinn-jupyter again.',
      version
    ),
    mend: again
  };
}

function reload(trans: Trans): Said['mend'] {
  return { label: trans.__('Reload the page'), act: () => window.location.reload() };
}

function otherVersion(service: IDjinn, trans: Trans): Said | null {
  const { version } = service.model.live;
  if (version === null || version === service.version) {
    return null;
  }
  return {
    text: trans.__(
      'The server has djinn-jupyter %1 and this page %2. Restart the Jupyter server and reload the page, so that both are the same.',
      version,
      service.version
    ),
    mend: reload(trans)
  };
}
