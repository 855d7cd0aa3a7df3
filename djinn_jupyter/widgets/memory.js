// Draws the memory course that the kernel sends: a stack of bands over time, the budget, and marks for moves.
// Owns a canvas and a button; asks nothing of the page but its colours.

const HEIGHT = 200, LEFT = 70, RIGHT = 12, TOP = 10, BOTTOM = 30;
const OUT = "#e06c28", IN = "#2e7ad6";

function spelled(bytes) {
  if (bytes >= 1000 * 2 ** 30) return `${Number((bytes / 2 ** 40).toPrecision(3))} TiB`;
  for (const [unit, size] of [["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]]) {
    if (bytes >= size) return `${Number((bytes / size).toPrecision(3))} ${unit}`;
  }
  return `${bytes} B`;
}

function draw(canvas, course) {
  const begun = performance.now();
  const scale = window.devicePixelRatio || 1;
  const width = canvas.clientWidth || 640;
  if (canvas.width !== Math.round(width * scale)) {
    canvas.width = Math.round(width * scale);
    canvas.height = Math.round(HEIGHT * scale);
  }
  const pen = canvas.getContext("2d");
  const text = getComputedStyle(canvas).color;
  const base = HEIGHT - BOTTOM;
  const first = course.times[0];
  const spread = course.times.at(-1) - first || 1;
  const x = at => LEFT + ((at - first) / spread) * (width - LEFT - RIGHT);
  const y = size => TOP + (1 - size / course.high) * (base - TOP);
  pen.setTransform(scale, 0, 0, scale, 0, 0);
  pen.clearRect(0, 0, width, HEIGHT);
  let below = course.times.map(() => 0);
  for (const band of course.bands) {
    const above = below.map((low, i) => low + band.sizes[i]);
    pen.beginPath();
    course.times.forEach((at, i) => pen.lineTo(x(at), y(above[i])));
    for (let i = course.times.length - 1; i >= 0; i--) pen.lineTo(x(course.times[i]), y(below[i]));
    pen.closePath();
    pen.fillStyle = band.ink;
    pen.fill();
    below = above;
  }
  pen.strokeStyle = text;
  pen.globalAlpha = 0.4;
  pen.beginPath();
  pen.moveTo(LEFT, TOP);
  pen.lineTo(LEFT, base);
  pen.lineTo(width - RIGHT, base);
  pen.stroke();
  pen.globalAlpha = 1;
  if (course.budget <= course.high) {
    pen.setLineDash([5, 4]);
    pen.beginPath();
    pen.moveTo(LEFT, y(course.budget));
    pen.lineTo(width - RIGHT, y(course.budget));
    pen.stroke();
    pen.setLineDash([]);
  }
  for (const [at, out] of course.moves) {
    const [tip, foot] = out ? [base + 10, base + 4] : [base + 4, base + 10];
    pen.fillStyle = out ? OUT : IN;
    pen.beginPath();
    pen.moveTo(x(at), tip);
    pen.lineTo(x(at) - 3, foot);
    pen.lineTo(x(at) + 3, foot);
    pen.fill();
  }
  pen.fillStyle = text;
  pen.font = "11px sans-serif";
  pen.textAlign = "right";
  pen.fillText(spelled(course.high), LEFT - 6, TOP + 4);
  pen.fillText("0", LEFT - 6, base + 4);
  pen.fillText(`${Math.round(spread)} s`, width - RIGHT, HEIGHT - 6);
  pen.textAlign = "left";
  pen.fillText("0 s", LEFT, HEIGHT - 6);
  canvas.dataset.drawMilliseconds = (performance.now() - begun).toFixed(2);
  canvas.dataset.draws = Number(canvas.dataset.draws || 0) + 1;
}

function legend(box, course) {
  box.replaceChildren(
    ...course.bands.map(band => {
      const item = document.createElement("span");
      const ink = document.createElement("span");
      ink.textContent = "\u25a0 ";
      ink.style.color = band.ink;
      item.append(ink, `${band.name} ${spelled(band.sizes.at(-1))}`);
      return item;
    }),
    `- - budget ${spelled(course.budget)}${course.budget > course.high ? " (above)" : ""}`,
    `host ${spelled(course.host.at(-1))}, disk ${spelled(course.disk.at(-1))}`,
    ...(course.moves.length ? ["\u25be left the device, \u25b4 came back"] : []),
  );
  for (const child of [...box.childNodes]) {
    if (child.nodeType === Node.TEXT_NODE) {
      const item = document.createElement("span");
      child.replaceWith(item);
      item.append(child);
    }
  }
}

// The kernel shows the same as a picture in the next output, for whoever opens the saved notebook.
const HIDES = ".jp-OutputArea-child:has(.djinn-memory)+.jp-OutputArea-child .djinn{display:none}";

function render({ model, el }) {
  el.classList.add("djinn-memory");
  el.style.cssText =
    "max-width:960px;margin:4px 0;border:1px solid var(--jp-border-color2,#8885);border-radius:3px;" +
    "font:13px/1.5 var(--jp-ui-font-family,sans-serif);color:var(--jp-content-font-color1,inherit)";
  const head = document.createElement("div");
  head.style.cssText =
    "display:flex;gap:10px;align-items:center;padding:5px 12px;background:var(--jp-layout-color2,#8882)";
  const title = document.createElement("span");
  title.style.fontWeight = "600";
  title.textContent = model.get("title");
  const live = document.createElement("span");
  live.style.color = "var(--jp-content-font-color2,#7a7a7a)";
  const stand = () => { live.textContent = model.get("standing"); };
  model.on("change:standing", stand);
  stand();
  const button = document.createElement("button");
  button.textContent = "Freeze";
  button.title = "Stop the chart and keep it in the notebook as it is";
  button.style.cssText =
    "margin-left:auto;font:inherit;color:inherit;background:var(--jp-layout-color1,transparent);" +
    "border:1px solid var(--jp-border-color1,#888);border-radius:3px;padding:0 10px;cursor:pointer";
  button.addEventListener("click", () => {
    button.disabled = true;
    model.send({ press: "freeze" });
  });
  head.append(title, live, button);
  const canvas = document.createElement("canvas");
  canvas.setAttribute("role", "img");
  canvas.style.cssText = `display:block;width:100%;height:${HEIGHT}px;margin:7px 0;color:inherit`;
  const names = document.createElement("div");
  names.style.cssText =
    "display:flex;flex-wrap:wrap;gap:2px 12px;padding:0 12px 7px;font-size:11px;" +
    "color:var(--jp-content-font-color2,#7a7a7a)";
  const style = document.createElement("style");
  style.textContent = HIDES;
  el.append(style, head, canvas, names);
  let asked = false;
  const update = () => {
    asked = false;
    const course = model.get("course");
    if (!course.times?.length || !el.isConnected) return;
    draw(canvas, course);
    legend(names, course);
    canvas.setAttribute("aria-label", model.get("said"));
  };
  const soon = () => {
    if (!asked) {
      asked = true;
      requestAnimationFrame(update);
    }
  };
  model.on("change:course", soon);
  const watcher = new ResizeObserver(soon);
  watcher.observe(el);
  const theme = new MutationObserver(soon);
  theme.observe(document.body, { attributes: true, attributeFilter: ["data-jp-theme-name"] });
  soon();
  return () => {
    model.off("change:course", soon);
    model.off("change:standing", stand);
    watcher.disconnect();
    theme.disconnect();
  };
}

export default { render };
