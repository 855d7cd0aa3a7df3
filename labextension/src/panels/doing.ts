/* The activity of a session in words: its state, or the work in it that does not move it, with its progress. */

import { Trans } from './react';
import { LiveSession, Progress, SessionState } from '../wire';

export function doingText({ described }: LiveSession, trans: Trans): string {
  if (described.progress !== null) {
    return progressText(described.progress, trans);
  }
  if (described.state === 'paused' && described.stopped_at) {
    return trans.__('at %1', described.stopped_at);
  }
  const names: Record<SessionState, string> = {
    idle: trans.__('idle'),
    running: trans.__('running'),
    paused: trans.__('paused'),
    closed: trans.__('closed')
  };
  return names[described.state];
}

export function progressText({ doing, done, total, counted }: Progress, trans: Trans): string {
  const count = done.toLocaleString('en-US');
  return total === null
    ? trans.__('%1, %2 %3 so far', doing, count, counted)
    : trans.__('%1, %2 of %3 %4', doing, count, total.toLocaleString('en-US'), counted);
}

/** The part that stays if such work is ended early. */
export function keptText({ doing }: Progress, trans: Trans): string {
  switch (doing) {
    case 'sweeping':
      return trans.__('The cells that are finished are kept.');
    case 'collecting':
      return trans.__('Shards that are whole stay in its folder.');
    default:
      return trans.__('What it has found so far is lost.');
  }
}
