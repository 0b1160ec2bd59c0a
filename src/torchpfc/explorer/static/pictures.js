// Inputs and parts as pictures: ink on paper where numbers are positive, another colour where they are negative.

import { el } from "./dom.js";

export function decode(text) {
  const bytes = atob(text);
  const values = new Float32Array(bytes.length);
  for (let i = 0; i < bytes.length; i++) values[i] = ((bytes.charCodeAt(i) << 24) >> 24) / 127;
  return values;
}

export const largest = (values) => values.reduce((most, v) => Math.max(most, Math.abs(v ?? 0)), 0);

let colours = null;

function palette() {
  colours ??= Object.fromEntries(
    [
      ["plus", "--ink"],
      ["minus", "--minus"],
    ].map(([name, variable]) => {
      const text = getComputedStyle(document.documentElement).getPropertyValue(variable).trim();
      return [name, [1, 3, 5].map((at) => parseInt(text.slice(at, at + 2), 16))];
    }),
  );
  return colours;
}

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  colours = null;
  document.querySelectorAll(".picture").forEach((shown) => shown.redraw?.());
});

function paintPixels(canvas, values, [channels, rows, columns], scale) {
  canvas.width = columns;
  canvas.height = rows;
  const context = canvas.getContext("2d");
  const image = context.createImageData(columns, rows);
  const size = rows * columns;
  const { plus, minus } = palette();
  const centred = channels === 3 && values.some((v) => v < 0);
  for (let i = 0; i < size; i++) {
    const at = 4 * i;
    if (channels === 3) {
      for (let c = 0; c < 3; c++) {
        const v = (values[c * size + i] ?? 0) / scale;
        image.data[at + c] = 255 * (centred ? 0.5 + v / 2 : v);
      }
      image.data[at + 3] = 255;
    } else {
      const v = (values[i] ?? 0) / scale;
      const colour = v < 0 ? minus : plus;
      image.data.set([...colour, 255 * Math.min(1, Math.abs(v))], at);
    }
  }
  context.putImageData(image, 0, 0);
}

function paintBars(canvas, values, scale) {
  const wide = Math.max(2, Math.min(12, Math.floor(240 / values.length)));
  canvas.width = wide * values.length;
  canvas.height = Math.max(48, Math.round(canvas.width * 0.55));
  const context = canvas.getContext("2d");
  const { plus, minus } = palette();
  const lowest = values.some((v) => v < 0);
  const zero = lowest ? canvas.height / 2 : canvas.height;
  values.forEach((v, i) => {
    const length = (Math.min(1, Math.abs(v ?? 0) / scale) * canvas.height) / (lowest ? 2 : 1);
    context.fillStyle = `rgb(${v < 0 ? minus : plus})`;
    context.fillRect(i * wide, v < 0 ? zero : zero - length, Math.max(1, wide - 1), length);
  });
}

function paint(canvas, values, shape, range) {
  const all = Array.from(values);
  const most = range || largest(all) || 1;
  if (shape) paintPixels(canvas, all, shape, most);
  else paintBars(canvas, all, most);
}

// A canvas that shows numbers; `show` gives it others.
export function picture(values, shape, label, scale) {
  const canvas = el("canvas", { class: shape ? "picture pixels" : "picture", role: "img", "aria-label": label });
  canvas.show = (numbers, range, name) => {
    canvas.redraw = () => paint(canvas, numbers, shape, range);
    if (name) canvas.setAttribute("aria-label", name);
    canvas.redraw();
  };
  canvas.show(values, scale);
  return canvas;
}

// An image that shows numbers once it comes into sight. A browser keeps a layer for every canvas, and hundreds are slow.
const sheet = document.createElement("canvas");
const watcher = new IntersectionObserver((entries) => {
  for (const { target, isIntersecting } of entries) {
    if (!isIntersecting) continue;
    watcher.unobserve(target);
    target.redraw();
  }
}, { rootMargin: "400px" });

export function laterPicture(image, shape, label) {
  const ratio = `auto ${shape ? `${shape[2]} / ${shape[1]}` : "1 / 0.55"}`; // its own once it has one
  const shown = el("img", { class: shape ? "picture pixels" : "picture", alt: label, style: { "aspect-ratio": ratio } });
  shown.redraw = () => {
    paint(sheet, decode(image), shape, 1);
    shown.src = sheet.toDataURL();
  };
  watcher.observe(shown);
  return shown;
}
