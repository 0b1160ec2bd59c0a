// A board to draw an input on, with a pointer or with the keyboard.

import { el } from "./dom.js";
import { picture } from "./pictures.js";

export function board([, rows, columns], brightest, changed) {
  const values = new Float32Array(rows * columns);
  const radius = Math.max(0.9, Math.min(rows, columns) / 16);
  const canvas = picture(values, [1, rows, columns], "", brightest);
  canvas.setAttribute("aria-hidden", "true");
  const cursor = el("i", { class: "cursor", "aria-hidden": "true" });
  const surface = el(
    "div",
    {
      class: "board frame",
      tabindex: "0",
      role: "application",
      "aria-label": `A board of ${rows} by ${columns}. Arrow keys move, space draws, delete clears a place.`,
    },
    canvas,
    cursor,
  );
  let erase = false;
  let last = null;
  const at = { row: rows >> 1, column: columns >> 1 };

  function update() {
    canvas.show(values, brightest);
    changed();
  }

  function dab(x, y) {
    for (let row = 0; row < rows; row++) {
      for (let column = 0; column < columns; column++) {
        const away = Math.hypot(column + 0.5 - x, row + 0.5 - y);
        const ink = Math.max(0, Math.min(1, 1.35 * radius + 0.1 - away)) * brightest;
        const i = row * columns + column;
        if (erase) {
          if (ink > 0.3 * brightest) values[i] = 0;
        } else values[i] = Math.max(values[i], ink);
      }
    }
  }

  function place(event) {
    const box = canvas.getBoundingClientRect();
    return [((event.clientX - box.left) / box.width) * columns, ((event.clientY - box.top) / box.height) * rows];
  }

  function stroke(event) {
    const [x, y] = place(event);
    const [from, to] = last ?? [x, y];
    const steps = Math.max(1, Math.ceil(Math.hypot(x - from, y - to) * 3));
    for (let k = 1; k <= steps; k++) dab(from + ((x - from) * k) / steps, to + ((y - to) * k) / steps);
    last = [x, y];
    update();
  }

  surface.addEventListener("pointerdown", (event) => {
    surface.setPointerCapture(event.pointerId);
    last = null;
    stroke(event);
  });
  surface.addEventListener("pointermove", (event) => event.buttons && last && stroke(event));
  for (const name of ["pointerup", "pointercancel"]) surface.addEventListener(name, () => (last = null));

  const follow = () => {
    cursor.style.setProperty("--row", at.row / rows);
    cursor.style.setProperty("--column", at.column / columns);
    cursor.style.setProperty("--height", 1 / rows);
    cursor.style.setProperty("--width", 1 / columns);
  };
  const moves = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
  surface.addEventListener("keydown", (event) => {
    if (moves[event.key]) {
      at.row = Math.min(rows - 1, Math.max(0, at.row + moves[event.key][0]));
      at.column = Math.min(columns - 1, Math.max(0, at.column + moves[event.key][1]));
      follow();
    } else if (event.key === " " || event.key === "Enter") {
      values[at.row * columns + at.column] = erase ? 0 : brightest;
      update();
    } else if (event.key === "Delete" || event.key === "Backspace") {
      values[at.row * columns + at.column] = 0;
      update();
    } else return;
    event.preventDefault();
  });
  follow();

  const eraser = el(
    "button",
    {
      class: "plain",
      "aria-pressed": "false",
      onclick: () => {
        erase = !erase;
        eraser.setAttribute("aria-pressed", String(erase));
      },
    },
    "Erase",
  );
  const clear = el("button", { class: "plain", onclick: () => set(new Float32Array(rows * columns)) }, "Clear");

  function set(numbers) {
    values.set(numbers);
    update();
  }

  return { element: el("div", {}, surface, el("div", { class: "buttons" }, clear, eraser)), values, set };
}
