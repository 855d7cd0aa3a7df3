/* Quantities as text, spelled as in the kernel's views. */

const UNITS = ['KiB', 'MiB', 'GiB', 'TiB'];
const DIGITS = new Intl.NumberFormat('en-US', {
  minimumSignificantDigits: 3,
  maximumSignificantDigits: 3,
  roundingMode: 'halfEven'
});

/** Enough places for every digit of a double near 1: its last bit is worth 2e-16, and a tie has no more digits. */
const EXACT = 60;

/** Bytes as `900 B`, `1.50 KiB`, `20.0 GiB`; from 1,000 of a unit on in the next one. */
export function spellBytes(bytes: number): string {
  if (bytes < 1024) {
    return `${bytes.toLocaleString('en-US')} B`;
  }
  let value = bytes / 1024;
  let unit = 0;
  while (value >= 1000 && unit < UNITS.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${DIGITS.format(value)} ${UNITS[unit]}`;
}

/** The time of day of a moment, in seconds since the epoch, as `12:03` or `12:03:30`. */
export function spellClock(at: number, seconds = false): string {
  return new Date(1000 * at).toLocaleTimeString([], {
    hour: '2-digit',
    minute: '2-digit',
    second: seconds ? '2-digit' : undefined,
    hourCycle: 'h23'
  });
}

export function spellSeconds(seconds: number): string {
  if (seconds < 60) {
    return `${Math.max(0, Math.floor(seconds))} s`;
  }
  const minutes = Math.floor(seconds / 60);
  return minutes < 60 ? `${minutes} min` : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

/** A number with three digits, as the kernel's views spell it. `none` is the text for a number that is not finite,
    which the wire sends as null. */
export function spellNumber(value: number | null, none: string): string {
  if (value === null) {
    return none;
  }
  const [digits, exponent] = Math.abs(value).toExponential(EXACT).split('e');
  const short = halfEven(digits, 2, Number(exponent));
  const signed = Math.sign(value) * short;
  if (short === 0) {
    return '0';
  }
  if (short < 1e-4 || short >= 1e9) {
    return signed.toExponential(2).replace(/([+-])(\d)$/, '$10$2');
  }
  const places = Math.max(0, 2 - Number(short.toExponential().split('e')[1]));
  return signed.toLocaleString('en-US', {
    minimumFractionDigits: places,
    maximumFractionDigits: places
  });
}

/** A probability as `42 %`, `3.1 %`, `<0.1 %`, `>99 %`, as the kernel's views spell it: an uncertain one is never 100 %. */
export function spellShare(share: number): string {
  if (share < 0.0005) {
    return share > 0 ? '<0.1 %' : '0 %';
  }
  if (share >= 0.995) {
    return share < 1 ? '>99 %' : '100 %';
  }
  const short = halfEven(share.toFixed(EXACT), share < 0.0995 ? 3 : 2, 0);
  return `${(100 * short).toFixed(short >= 0.0995 ? 0 : 1)} %`;
}

/** An exact decimal times a power of ten, rounded to so many of its places; a half goes to the even digit, as in Python,
 * where `toFixed` rounds it up. */
function halfEven(exact: string, places: number, exponent: number): number {
  const cut = exact.indexOf('.') + 1 + places;
  const [kept, rest] = [exact.slice(0, cut).replace('.', ''), exact.slice(cut)];
  const up = /^50*$/.test(rest) ? Number(kept) % 2 : Number(rest[0] >= '5');
  return Number(`${Number(kept) + up}e${exponent - places}`);
}

/** A token's text with invisible characters made visible. */
export function spellToken(text: string): string {
  return JSON.stringify(text).slice(1, -1).replace(/\\"/g, '"').replace(/ /g, '\u00b7') || '\u2205';
}
