import { spellBytes, spellNumber, spellShare } from '../src/models/spell';
import bytes from './bytes.json';
import numbers from './numbers.json';

type Examples = [number, string][];

test.each(bytes as Examples)('%d bytes are spelled as the kernel spells them', (count, text) => {
  expect(spellBytes(count)).toBe(text);
});

test.each(numbers.figures as Examples)('%d is spelled as the kernel spells it', (value, text) => {
  expect(spellNumber(value, 'none')).toBe(text);
});

test.each(numbers.shares as Examples)(
  'a probability of %d is spelled as the kernel spells it',
  (share, text) => {
    expect(spellShare(share)).toBe(text);
  }
);

test('a number that is not finite has a word', () => {
  expect(spellNumber(null, 'not finite')).toBe('not finite');
});
