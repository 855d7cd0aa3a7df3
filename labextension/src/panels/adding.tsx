/* The forms of breakpoints: a site with completion, a condition, whether it stops once; and refusals. */

import * as React from 'react';

import { reasonOf } from '../service/channel';
import { CONDITIONS, completions, matching } from '../models/places';
import { IDjinn } from '../tokens';
import { ModuleDescription } from '../wire';
import { PanelProps, Trans } from './react';

/** The condition in a form, and its refusal. */
export interface Condition {
  readonly when: string;
  readonly once: boolean;
  readonly refused: string | null;
  readonly change: (when: string, once: boolean) => void;
  /** The typed text in the form of the request. */
  readonly wanted: Pick<IDjinn.Wanted, 'when' | 'once'>;
  /** Wait for `asked`, then call `done`, or show the refusal here. */
  readonly attempt: (asked: Promise<unknown>, done: () => void) => void;
}

export function useCondition(whenFirst = '', onceFirst = false): Condition {
  const [when, setWhen] = React.useState(whenFirst);
  const [once, setOnce] = React.useState(onceFirst);
  const [refused, setRefused] = React.useState<string | null>(null);
  const change = (text: string, on: boolean): void => {
    setWhen(text);
    setOnce(on);
    setRefused(null);
  };
  const attempt = (asked: Promise<unknown>, done: () => void): void => {
    setRefused(null);
    asked.then(done, error => setRefused(reasonOf(error)));
  };
  return { when, once, refused, change, wanted: { when: when.trim() || null, once }, attempt };
}

interface FieldsProps {
  readonly condition: Condition;
  readonly label: string;
  readonly submit: string;
  readonly disabled?: boolean;
  readonly focused?: boolean;
  readonly trans: Trans;
}

/** The part that both forms share: condition, once, the button, and the refusal. */
export function ConditionFields(props: FieldsProps): React.JSX.Element {
  const { condition, trans } = props;
  const { when, once, refused, change } = condition;
  const offered = React.useId();
  return (
    <>
      <input
        className="jp-mod-styled"
        value={when}
        list={offered}
        autoFocus={props.focused}
        spellCheck={false}
        autoComplete="off"
        placeholder={trans.__('Condition')}
        title={trans.__(
          'Knows step, position, token, token_id, norm, top1 and p(" a token"), with comparisons, arithmetic, and, or, not.'
        )}
        aria-label={props.label}
        onChange={event => change(event.target.value, once)}
      />
      <datalist id={offered}>
        {matching(CONDITIONS, when).map(text => (
          <option key={text} value={text} />
        ))}
      </datalist>
      <label className="djinn-Add-once" title={trans.__('It is removed when it has stopped once')}>
        <input
          type="checkbox"
          checked={once}
          onChange={event => change(when, event.target.checked)}
        />
        {trans.__('once')}
      </label>
      <button type="submit" className="djinn-textButton" disabled={props.disabled}>
        {props.submit}
      </button>
      {refused !== null && (
        <p className="djinn-Add-refused" role="alert" ref={intoSight}>
          {refused}
        </p>
      )}
    </>
  );
}

/** The panel may be lower than its form. */
function intoSight(node: HTMLElement | null): void {
  node?.scrollIntoView({ block: 'nearest' });
}

interface AddProps extends PanelProps {
  readonly modules: readonly ModuleDescription[];
}

export function AddBreakpoint({ service, trans, modules }: AddProps): React.JSX.Element {
  const [site, setSite] = React.useState('');
  const condition = useCondition();
  const offered = React.useId();
  const description = service.model.engine?.found.description ?? null;
  const all = React.useMemo(
    () => (description ? completions(description, modules) : []),
    [description, modules]
  );
  const empty = (): void => {
    setSite('');
    condition.change('', false);
  };
  const submit = (event: React.FormEvent): void => {
    event.preventDefault();
    const { chosen } = service.model;
    if (chosen && site.trim()) {
      const wanted = { site: site.trim(), ...condition.wanted };
      condition.attempt(service.addBreakpoint(chosen, wanted), empty);
    }
  };
  return (
    <form className="djinn-Add" onSubmit={submit}>
      <input
        className="jp-mod-styled djinn-Add-site"
        value={site}
        list={offered}
        spellCheck={false}
        autoComplete="off"
        placeholder={trans.__('Site, as 20 or z.9[6]')}
        aria-label={trans.__('Site of the new breakpoint')}
        onChange={event => {
          setSite(event.target.value);
          condition.change(condition.when, condition.once);
        }}
      />
      <datalist id={offered}>
        {matching(all, site).map(name => (
          <option key={name} value={name} />
        ))}
      </datalist>
      <ConditionFields
        condition={condition}
        label={trans.__('Condition of the new breakpoint')}
        submit={trans.__('Add')}
        disabled={!site.trim()}
        trans={trans}
      />
    </form>
  );
}
