/** @jest-environment jsdom */

import { screen, within } from '@testing-library/react';

import { Memory } from '../src/panels/memory';
import { EngineStatistics, PersonMemory } from '../src/wire';
import { engine } from './double';
import { drawn } from './drawn';

function person(name: string | null, device: number): PersonMemory {
  return { person: name, device_bytes: device, host_bytes: 2048, disk_bytes: 0 };
}

async function shown(...people: PersonMemory[]): Promise<void> {
  const statistics = {
    weight_bytes: 1000,
    slabs: [],
    tiers: [],
    weights: null,
    other_bytes: null,
    budget: null,
    people
  } as unknown as EngineStatistics;
  await drawn(Memory).show({ ...engine('e1'), statistics });
}

test('where persons share an engine the panel says whose memory it is', async () => {
  await shown(person(null, 0), person('anna', 3 * 1024), person('bert', 5 * 1024 * 1024));
  const table = within(screen.getByRole('table', { name: 'Memory by person' }));
  const rows = table
    .getAllByRole('row')
    .map(row => [...row.children].map(cell => cell.textContent));
  expect(rows).toEqual([
    ['person', 'device', 'host', 'disk'],
    ["the engine's user", '0 B', '2.00 KiB', '0 B'],
    ['anna', '3.00 KiB', '2.00 KiB', '0 B'],
    ['bert', '5.00 MiB', '2.00 KiB', '0 B']
  ]);
});

test('where there is one user only nothing is said of persons', async () => {
  await shown();
  expect(screen.getAllByRole('table')).toHaveLength(1);
  expect(screen.queryByRole('table', { name: 'Memory by person' })).toBeNull();
});
