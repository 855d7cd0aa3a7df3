/* How the panels of the sidebar share its height. Pure. */

/** The height a panel wants, in pixels, and its weight when there is too little. */
export interface Wish {
  readonly height: number;
  readonly weight: number;
}

/**
 * Heights that sum to `room`: a panel gets what it wants if that is less than its share, and the others share the rest
 * by their weights. Height that no panel wants goes to the last one that wants most.
 */
export function shareHeight(wishes: readonly Wish[], room: number): number[] {
  const given = wishes.map(() => 0);
  let open = wishes.map((_, index) => index).filter(index => wishes[index].height > 0);
  let left = Math.max(0, room);
  for (;;) {
    const weights = sum(open.map(index => wishes[index].weight));
    const content = open.filter(
      index => wishes[index].height <= (left * wishes[index].weight) / weights
    );
    if (content.length === 0) {
      open.forEach(index => (given[index] = (left * wishes[index].weight) / weights));
      return given;
    }
    content.forEach(index => (given[index] = wishes[index].height));
    left -= sum(content.map(index => wishes[index].height));
    open = open.filter(index => !content.includes(index));
    if (open.length === 0) {
      const largest = given.indexOf(Math.max(...given));
      given[largest] += left;
      return given;
    }
  }
}

function sum(numbers: readonly number[]): number {
  return numbers.reduce((total, number) => total + number, 0);
}
