/* Written by docs/write_reference.py from the structs of the package; change those, not this file. */

import {
  Float,
} from './values';

export type Tier = 'host' | 'disk';

/** One move of a session's bytes between the device and a tier: how many really moved, and how long it took. */
export interface Transfer {
  readonly direction: 'out' | 'in';
  readonly tier: 'host' | 'disk';
  readonly bytes_moved: number;
  readonly seconds: Float;
  readonly cause: 'asked' | 'pressure' | 'idleness' | 'prefetch' | 'needed' | 'write_through';
  readonly copy_seconds: Float | null;
}
