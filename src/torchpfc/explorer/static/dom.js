// Elements from code. Text is always text: nothing that a model brings is read as HTML.

export function el(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (key === "style") Object.entries(value).forEach(([name, text]) => element.style.setProperty(name, text));
    else element.setAttribute(key, value === true ? "" : value);
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

export const percent = (share, digits = 1) =>
  share === null || share === undefined ? "–" : `${(100 * share).toFixed(digits)} %`;

// A number in few digits. Those of a model may be of any size.
export function number(value) {
  if (value === null || value === undefined) return "–";
  if (value === 0) return "0";
  const size = Math.abs(value);
  const text = size >= 1000 ? size.toFixed(0) : size < 0.0005 ? size.toPrecision(2) : size.toFixed(size >= 100 ? 1 : size >= 10 ? 2 : 3);
  return value < 0 ? `−${text}` : text;
}

export const signed = (value) =>
  Math.abs(value) < 0.0005 ? "0" : `${value > 0 ? "+" : "−"}${number(Math.abs(value))}`;

export const count = (value, word, words = `${word}s`) => `${value.toLocaleString("en")} ${value === 1 ? word : words}`;

export const featureNames = (model) =>
  model.features.length ? model.features : Array.from({ length: model.num_features }, (_, k) => `feature ${k}`);

// Numbers in few words: 0–2, 7, 9–11.
export function ranges(numbers) {
  const runs = [];
  for (const n of [...numbers].sort((a, b) => a - b)) {
    const last = runs.at(-1);
    if (last && n === last[1] + 1) last[1] = n;
    else runs.push([n, n]);
  }
  return runs.map(([a, b]) => (a === b ? `${a}` : `${a}–${b}`)).join(", ");
}

export function choice(legend, name, options, value, change) {
  return el(
    "fieldset",
    { class: "choice" },
    legend ? el("legend", {}, legend) : null,
    options.map(([key, text]) =>
      el(
        "label",
        {},
        el("input", { type: "radio", name, value: key, checked: key === value, onchange: () => change(key) }),
        el("span", {}, text),
      ),
    ),
  );
}

export function select(label, options, value, change) {
  return el(
    "label",
    { class: "select" },
    el("span", {}, label),
    el(
      "select",
      { onchange: (event) => change(event.target.value) },
      options.map(([key, text]) => el("option", { value: key, selected: key === value }, text)),
    ),
  );
}

export const check = (label, checked, change) =>
  el("label", { class: "check" }, el("input", { type: "checkbox", checked, onchange: (e) => change(e.target.checked) }), el("span", {}, label));

// A bar for each output: its name, its length, its number.
export function bars(names, values, { limit, text = percent, marks = [], chosen = -1, label } = {}) {
  const most = limit ?? Math.max(1e-12, ...values.map((v) => Math.abs(v ?? 0)));
  return el(
    "dl",
    { class: "bars", "aria-label": label },
    names.map((name, k) =>
      el(
        "div",
        { class: k === chosen ? "wins" : undefined },
        el("dt", {}, name),
        el(
          "dd",
          {},
          el(
            "span",
            { class: "track", "aria-hidden": "true" },
            el("i", {
              class: (values[k] ?? 0) < 0 ? "minus" : undefined,
              style: { width: `${Math.min(100, (100 * Math.abs(values[k] ?? 0)) / most)}%` },
            }),
            marks.length ? el("b", { style: { left: `${Math.min(100, (100 * Math.abs(marks[k] ?? 0)) / most)}%` } }) : null,
          ),
          el("span", { class: "value" }, text(values[k])),
        ),
      ),
    ),
  );
}

// One stop for the tab key, and arrows inside.
export function roving(container, selector = "button") {
  const items = () => [...container.querySelectorAll(selector)].filter((item) => item.offsetParent !== null);
  const refresh = () => {
    const all = [...container.querySelectorAll(selector)];
    const current = all.find((item) => item.tabIndex === 0 && item.dataset.stop) ?? all[0];
    all.forEach((item) => (item.tabIndex = item === current ? 0 : -1));
  };
  const move = (to) => {
    items().forEach((item) => {
      item.tabIndex = item === to ? 0 : -1;
      if (item === to) item.dataset.stop = "1";
      else delete item.dataset.stop;
    });
    to.focus();
  };
  container.addEventListener("keydown", (event) => {
    const all = items();
    const at = all.indexOf(document.activeElement);
    if (at < 0) return;
    let to = null;
    if (event.key === "ArrowRight") to = all[at + 1];
    else if (event.key === "ArrowLeft") to = all[at - 1];
    else if (event.key === "Home") to = all[0];
    else if (event.key === "End") to = all.at(-1);
    else if (event.key === "ArrowDown" || event.key === "ArrowUp") to = nearest(all, at, event.key === "ArrowDown");
    else return;
    event.preventDefault();
    if (to) move(to);
  });
  container.addEventListener("focusin", (event) => {
    if (event.target.matches(selector) && event.target.tabIndex !== 0) move(event.target);
  });
  refresh();
  return refresh;
}

// The item of the next row, or of the one before, that is closest in the horizontal.
function nearest(items, at, down) {
  const here = items[at].getBoundingClientRect();
  let best = null;
  let least = Infinity;
  for (const item of items) {
    const box = item.getBoundingClientRect();
    const away = down ? box.top - here.top : here.top - box.top;
    if (away < here.height / 2) continue;
    const distance = 10 * away + Math.abs(box.left - here.left);
    if (distance < least) [best, least] = [item, distance];
  }
  return best;
}
