import { spellBytes } from '../src/models/spell';
import bytes from './bytes.json';

test.each(bytes as [number, string][])(
  '%d bytes are spelled as the kernel spells them',
  (count, text) => {
    expect(spellBytes(count)).toBe(text);
  }
);
