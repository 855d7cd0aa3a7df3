/* The steering rules, which change every pass; each can be turned off and ended. */

import { closeIcon } from '@jupyterlab/ui-components';
import * as React from 'react';

import { Place } from '../models/live';
import { IDjinn } from '../tokens';
import { RuleDescription } from '../wire';
import { Action, Refused } from './parts';
import { relativeSize } from './edits';
import { Trans } from './react';

interface RulesProps {
  readonly rules: readonly RuleDescription[];
  readonly label: string;
  readonly place: Place;
  readonly service: IDjinn;
  readonly trans: Trans;
}

export function Rules({ rules, label, place, service, trans }: RulesProps): React.JSX.Element {
  return (
    <div className="djinn-Rules">
      <h4 className="djinn-subhead">{trans.__('Steering rules')}</h4>
      <ul className="djinn-list" aria-label={trans.__('Steering rules of %1', label)}>
        {rules.map(rule => (
          <li key={rule.number} className="djinn-Breakpoint">
            <label className="djinn-Breakpoint-main djinn-Rule-main">
              <input
                type="checkbox"
                checked={rule.enabled}
                aria-label={trans.__('The rule at %1 is on', rule.site)}
                onChange={event => service.enableRule(place, rule.number, event.target.checked)}
              />
              <span className="djinn-mono djinn-Breakpoint-site">{rule.what}</span>
            </label>
            <Action
              icon={closeIcon}
              label={trans.__('End the rule at %1', rule.site)}
              act={() => service.unsteer(place, rule.number)}
            />
            <div className="djinn-soft djinn-Breakpoint-when">
              <span className="djinn-Breakpoint-hits">{strength(rule, trans)}</span>
            </div>
            {rule.trouble != null && (
              <div className="djinn-soft djinn-Breakpoint-when" role="status">
                {trans.__('Could not be applied: %1', rule.trouble)}
              </div>
            )}
            <Refused
              subject={{ ...place, about: `rule ${rule.number}` }}
              service={service}
              trans={trans}
            />
          </li>
        ))}
      </ul>
    </div>
  );
}

/** The relative size of the rule's change in the last pass that reached it. */
function strength(rule: RuleDescription, trans: Trans): string {
  const { enabled, last_relative_size: size, passes_met } = rule;
  if (!enabled) {
    return trans.__('off');
  }
  return size === null || size === undefined
    ? passes_met > 0
      ? trans._n('%1 pass', '%1 passes', passes_met)
      : trans.__('not met yet')
    : relativeSize(size, trans);
}
