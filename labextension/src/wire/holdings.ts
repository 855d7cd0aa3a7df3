/* Written by docs/write_reference.py from the structs of the package; change those, not this file. */

import {
  Float,
} from './values';

/** Bytes on the device of one kind of holder: `pages`, `working copies`, `stops and states`. */
export interface Holding {
  readonly kind: string;
  readonly bytes_held: number;
}

/**
 * The memory that all sessions together may have on the device, and have. `bytes_overdrawn`: what is above the
 * limit, while older stops and sessions leave for it; 0 unless something was made whose room was not foreseen.
 */
export interface BudgetStatistics {
  readonly bytes_limit: number;
  readonly bytes_taken: number;
  readonly bytes_overdrawn: number;
  readonly holdings: readonly Holding[];
}

/** The main memory of the engine's process, as the system reports it, beside the accounting. Unmeasured is None. */
export interface ProcessMemory {
  readonly anonymous_bytes: number | null;
  readonly mapped_bytes: number | null;
  readonly accounted_bytes: number;
  readonly runtime_bytes: number | null;
  readonly beyond_bytes: number | null;
  readonly device_beyond_bytes: number | null;
}

/**
 * The memory that the sessions of one person hold, None for the engine's own user. A page or tensor that several
 * sessions share counts once, for the person of the oldest of them. Working copies and free pages are no one's.
 */
export interface PersonMemory {
  readonly person: string | null;
  readonly device_bytes: number;
  readonly host_bytes: number;
  readonly disk_bytes: number;
}

/** The limits that an engine was started with, in bytes, positions and seconds. None was left to the engine. */
export interface GivenLimits {
  readonly device_memory: number | null;
  readonly card_memory: number | null;
  readonly host_memory: number | null;
  readonly disk_memory: number | null;
  readonly page_positions: number | null;
  readonly idle_swap_seconds: Float;
}

export interface SlabStatistics {
  readonly pages: number;
  readonly pages_free: number;
  readonly pages_shared: number;
  readonly page_bytes: number;
  readonly bytes_allocated: number;
  readonly bytes_limit: number;
  readonly working_copies: number;
  readonly working_bytes: number;
}

/**
 * The accounting of the host or disk tier, in bytes; since the start `bytes_out` came to it, `bytes_in` went
 * back.
 */
export interface TierStatistics {
  readonly tier: 'host' | 'disk';
  readonly pages: number;
  readonly bytes_used: number;
  readonly bytes_allocated: number;
  readonly bytes_limit: number;
  readonly bytes_out: number;
  readonly bytes_in: number;
}
