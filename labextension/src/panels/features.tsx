/* The strongest features of added modules at a session's stop, read while their rows are open, and editing one by a
   click. */

import * as React from 'react';

import { toFloats } from '../models/arrays';
import { Feature, featuresIn, strongest } from '../models/features';
import { Place, key } from '../models/live';
import { reasonOf } from '../service/channel';
import { IDjinn } from '../tokens';
import { Edit, LiveSession } from '../wire';
import { standing } from './activation';
import { PanelProps, Trans } from './react';

/** The values of one module, or the reason why they were `refused`. */
type Read = { readonly values: Float32Array } | { readonly refused: string };

/** The features at the present stop of each open module, by its site, or why they cannot be read. */
export interface FeaturesAtStop {
  readonly features: ReadonlyMap<string, readonly Feature[]>;
  readonly refused: ReadonlyMap<string, string>;
}

/** Read the open modules again when the session's stop changes. The earlier values stay until then. */
export function useFeatures(
  service: IDjinn,
  place: Place | null,
  session: LiveSession | null,
  modules: readonly string[]
): FeaturesAtStop {
  const [found, setFound] = React.useState<{ of: string; read: ReadonlyMap<string, Read> } | null>(
    null
  );
  const stands = session?.described.state === 'paused' ? standing(session) : null;
  const of = place === null || stands === null ? null : key(place);
  const asked = modules.join(' ');
  React.useEffect(() => {
    let wanted = true;
    if (place !== null && of !== null && modules.length) {
      void readAll(service, place, modules).then(read => wanted && setFound({ of, read }));
    }
    return () => {
      wanted = false;
    };
  }, [service, of, stands, asked]);
  const sites = session?.described.breakpoints.map(({ site }) => site) ?? [];
  return listed(found !== null && found.of === of ? found.read : new Map(), sites);
}

async function readAll(
  service: IDjinn,
  place: Place,
  modules: readonly string[]
): Promise<ReadonlyMap<string, Read>> {
  const each = modules.map(async (site): Promise<[string, Read]> => {
    const { session } = place;
    const request = { request: 'Inspect', session, site, positions: [-1] } as const;
    return service.sendRequest<'Inspect'>(place.engine, request).then(
      ({ snapshot }) => [site, { values: toFloats(snapshot.value) }],
      error => [site, { refused: reasonOf(error) }]
    );
  });
  return new Map(await Promise.all(each));
}

function listed(read: ReadonlyMap<string, Read>, sites: readonly string[]): FeaturesAtStop {
  const features = new Map<string, readonly Feature[]>();
  const refused = new Map<string, string>();
  for (const [site, one] of read) {
    if ('refused' in one) {
      refused.set(site, one.refused);
    } else {
      features.set(site, strongest(one.values, featuresIn(sites, site)));
    }
  }
  return { features, refused };
}

/** The edits that a click makes, as on their buttons. */
const EDITS: readonly { readonly text: string; readonly edit: Edit }[] = [
  { text: '0', edit: { edit: 'zero' } },
  { text: '\u00d72', edit: { edit: 'scale', factor: 2 } }
];

interface FeatureEditsProps extends PanelProps {
  readonly place: Place;
  readonly site: string;
  /** Whether Tab comes here: only in the row with the focus. */
  readonly reached: boolean;
}

/** Buttons that edit one feature at all positions of the stopped pass. */
export function FeatureEdits(props: FeatureEditsProps): React.JSX.Element {
  const { place, site, reached, service, trans } = props;
  return (
    <span className="djinn-Row-edits">
      {EDITS.map(({ text, edit }) => (
        <button
          key={text}
          className="djinn-textButton"
          tabIndex={reached ? 0 : -1}
          title={labelOf(edit, site, trans)}
          aria-label={labelOf(edit, site, trans)}
          onClick={event => {
            event.stopPropagation();
            void service.edit(place, site, edit);
          }}
          onKeyDown={event => event.stopPropagation()}
        >
          {text}
        </button>
      ))}
    </span>
  );
}

function labelOf({ edit }: Edit, site: string, trans: Trans): string {
  return edit === 'zero'
    ? trans.__('Set %1 to zero at all positions', site)
    : trans.__('Double %1 at all positions', site);
}
