/* What the panels use of a browser and jsdom does not have. Every element counts as seen; a canvas draws nothing. */

class AlwaysSeen {
  constructor(private readonly tell: (entries: { isIntersecting: boolean }[]) => void) {}
  observe(): void {
    this.tell([{ isIntersecting: true }]);
  }
  disconnect(): void {}
}

if (typeof window !== 'undefined') {
  Object.assign(window, { IntersectionObserver: AlwaysSeen, DragEvent: MouseEvent });
  Element.prototype.scrollIntoView = () => undefined;
  HTMLCanvasElement.prototype.getContext = () => null;
}

export {};
