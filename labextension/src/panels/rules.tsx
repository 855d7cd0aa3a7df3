/* The steering rules in force: they change every pass, so what is stopped under them says so, and each can be ended. */

import { closeIcon } from '@jupyterlab/ui-components';
import * as React from 'react';

import { Place } from '../live';
import { DjinnService } from '../service';
import { spellEdit } from '../spell';
import { RuleDescription } from '../wire';
import { Action } from './parts';
import { Trans } from './react';

interface RulesProps {
  readonly rules: readonly RuleDescription[];
  readonly label: string;
  readonly place: Place;
  readonly service: DjinnService;
  readonly trans: Trans;
}

export function Rules({ rules, label, place, service, trans }: RulesProps): React.JSX.Element {
  return (
    <div className="djinn-Rules">
      <h4 className="djinn-subhead">{trans.__('Steering rules in force')}</h4>
      <ul className="djinn-list" aria-label={trans.__('Steering rules of %1', label)}>
        {rules.map(rule => (
          <li key={rule.number} className="djinn-Breakpoint">
            <span className="djinn-mono djinn-Breakpoint-main">{rule.site}</span>
            <span className="djinn-soft djinn-Breakpoint-hits">{strength(rule, trans)}</span>
            <Action
              icon={closeIcon}
              label={trans.__('End the rule at %1', rule.site)}
              act={() => service.unsteer(place, rule.number)}
            />
            <div className="djinn-soft djinn-Breakpoint-when">
              <span className="djinn-mono">{spellEdit(rule.edit)}</span>
              {rule.positions !== null && (
                <span>{trans.__('positions %1', rule.positions.join(', '))}</span>
              )}
            </div>
          </li>
        ))}
      </ul>
    </div>
  );
}

/** How much of the value the rule changed in the last pass that met it. */
function strength({ last_relative_size: size, passes_met }: RuleDescription, trans: Trans): string {
  return size === null || size === undefined
    ? passes_met > 0
      ? trans._n('%1 pass', '%1 passes', passes_met)
      : trans.__('not met yet')
    : trans.__('%1 % of the value', (100 * size).toPrecision(2));
}
