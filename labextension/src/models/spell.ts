/* Quantities as text; bytes the way the kernel's views spell them. */

const UNITS = ['KiB', 'MiB', 'GiB', 'TiB'];
const DIGITS = new Intl.NumberFormat('en-US', {
  minimumSignificantDigits: 3,
  maximumSignificantDigits: 3,
  roundingMode: 'halfEven'
});

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

export function spellSeconds(seconds: number): string {
  if (seconds < 60) {
    return `${Math.max(0, Math.floor(seconds))} s`;
  }
  const minutes = Math.floor(seconds / 60);
  return minutes < 60 ? `${minutes} min` : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

/** `none` is what is said of a number that is not finite, which crosses as null. */
export function spellNumber(value: number | null, none: string): string {
  if (value === null) {
    return none;
  }
  const size = Math.abs(value);
  return size !== 0 && (size < 0.01 || size >= 10000)
    ? value.toExponential(2)
    : value.toPrecision(4);
}

/** A share, as a part of 100. */
export function spellShare(share: number): string {
  const percent = 100 * share;
  return `${percent >= 10 ? Math.round(percent) : Number(percent.toPrecision(2))} %`;
}

/** A token's text with what cannot be seen made visible. */
export function spellToken(text: string): string {
  return JSON.stringify(text).slice(1, -1).replace(/\\"/g, '"').replace(/ /g, '\u00b7') || '\u2205';
}
