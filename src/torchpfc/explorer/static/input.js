// One input, taken apart: what it is made of, what each part adds to the answer, and what would change with more or less.

import { get, latest, post } from "./api.js";
import { bars, check, choice, el, featureNames, number, percent, select, signed } from "./dom.js";
import { board } from "./drawing.js";
import { decode, largest, picture } from "./pictures.js";

const PAGE = 30;

export async function inputView(section, state) {
  const { model } = state;
  const asked = { example: model.num_examples ? 0 : null, values: null };
  const factors = new Map();
  let adapt = false;

  const result = el("div", { class: "result", "aria-live": "off" });
  const shown = explanation(state, {
    change(part, factor) {
      if (factor === 1) factors.delete(part);
      else factors.set(part, factor);
      update();
    },
    reset() {
      factors.clear();
      update(true);
    },
    adapt(on) {
      adapt = on;
      update();
    },
  });
  result.append(shown.element);

  // Whether all is to be made anew: a later call that changes an amount only must not make an earlier one forget it.
  let anew = false;

  function update(fresh = false) {
    anew ||= fresh;
    return ask();
  }

  const ask = latest(() =>
    state.guarded(async () => {
      const fresh = anew;
      anew = false;
      const body = asked.values ? { values: Array.from(asked.values) } : { example: asked.example };
      body.factors = [...factors].map(([part, factor]) => ({ part, factor }));
      body.adapt = adapt;
      shown.show(await post("/api/explain", body), fresh);
      section.dataset.ready = "1";
    }),
  );

  function pick(example) {
    asked.example = example;
    asked.values = null;
    factors.clear();
    for (const button of chooser.querySelectorAll("button.tile")) {
      button.setAttribute("aria-pressed", String(Number(button.dataset.example) === example));
    }
    return update(true);
  }

  const filter = { label: "", wrong: false, offset: 0 };
  const chooser = el("div", { class: "tiles" });
  const pages = el("div", { class: "buttons" });
  const list = latest(() =>
    state.guarded(async () => {
      const query = new URLSearchParams({ offset: filter.offset, limit: PAGE, wrong: filter.wrong });
      if (filter.label !== "") query.set("label", filter.label);
      const { examples, total } = await get(`/api/examples?${query}`);
      chooser.replaceChildren(...examples.map((example) => tile(example, model, asked, pick)));
      if (!examples.length) chooser.replaceChildren(el("p", { class: "note" }, "There are none."));
      const turn = (by) => () => {
        filter.offset += by;
        list();
      };
      pages.replaceChildren(
        el("button", { class: "plain", disabled: filter.offset === 0, onclick: turn(-PAGE) }, "Previous"),
        el("span", { class: "note" }, total ? `${filter.offset + 1}–${Math.min(filter.offset + PAGE, total)} of ${total}` : ""),
        el("button", { class: "plain", disabled: filter.offset + PAGE >= total, onclick: turn(PAGE) }, "Next"),
      );
    }),
  );
  const again = (change) => (value) => {
    change(value);
    filter.offset = 0;
    list();
  };

  const picking = el(
    "div",
    {},
    model.labelled
      ? el(
          "div",
          { class: "controls tight" },
          select("Class", [["", "all"], ...model.outputs.map((name, k) => [String(k), name])], "", again((key) => (filter.label = key))),
          check("Only mistakes", false, again((on) => (filter.wrong = on))),
        )
      : null,
    chooser,
    pages,
  );

  const canDraw = model.shape && model.shape[0] === 1;
  let drawn = null;
  if (canDraw) {
    drawn = board(model.shape, model.brightest, () => {
      asked.values = drawn.values;
      factors.clear();
      update(true);
    });
  }
  const drawing = canDraw
    ? el(
        "div",
        { hidden: true },
        el("p", { class: "note" }, "Draw with the pointer. With the keyboard: arrows move, space draws."),
        drawn.element,
        el("button", { class: "plain", onclick: () => copy() }, "Start from the example"),
      )
    : null;

  async function copy() {
    const found = await state.guarded(() => post("/api/explain", { example: asked.example }));
    if (found) drawn.set(found.input.map((v) => v ?? 0));
  }

  function tab(name) {
    picking.hidden = name !== "pick";
    if (drawing) drawing.hidden = name !== "draw";
    if (name === "draw") {
      asked.values = drawn.values;
      factors.clear();
      update(true);
    } else pick(asked.example);
  }

  section.replaceChildren(
    el(
      "div",
      { class: "intro" },
      el("h2", {}, model.outputs.length ? "Why it answers" : "What it sees"),
      el(
        "p",
        {},
        "An input is put together from parts, as closely as possible." +
          (model.outputs.length ? " Each part then adds its amount times its weight to every output. These sums are the whole computation." : ""),
      ),
    ),
    el(
      "div",
      { class: "split" },
      el(
        "div",
        { class: "chooser" },
        canDraw ? choice("", "source", [["pick", "Pick an example"], ["draw", "Draw one"]], "pick", tab) : el("h3", {}, "Pick an example"),
        picking,
        drawing,
      ),
      result,
    ),
  );
  await list();
  if (asked.example !== null) await pick(asked.example);
  return (argument) => {
    if (argument === "draw" && canDraw) {
      section.querySelector('input[value="draw"]').checked = true;
      return tab("draw");
    }
    section.querySelector('input[value="pick"]')?.click();
    return /^\d+$/.test(argument) ? pick(Number(argument)) : undefined;
  };
}

function tile(example, model, asked, pick) {
  const right = example.label === null || example.answer === null || example.label === example.answer;
  const words = [`Example ${example.index}`];
  if (example.label !== null) words.push(`a ${model.outputs[example.label]}`);
  if (!right) words.push(`answered ${model.outputs[example.answer]}`);
  return el(
    "button",
    {
      class: `tile${right ? "" : " wrong"}`,
      "data-example": example.index,
      "aria-pressed": String(asked.values === null && asked.example === example.index),
      "aria-label": words.join(", "),
      title: words.join(", "),
      onclick: () => pick(example.index),
    },
    picture(decode(example.image), model.shape, "", 1),
    example.label === null ? null : el("span", { "aria-hidden": "true" }, right ? model.outputs[example.label] : `${model.outputs[example.label]} → ${model.outputs[example.answer]}`),
  );
}

// Everything about one explanation. It is made once and then changed in place, so that sliders keep their hold.
function explanation(state, on) {
  const { model } = state;
  const images = new Map(state.parts.map((part) => [part.column, part.image]));
  const blank = new Float32Array(model.num_features);
  const sums = ["Input", "Sum of parts", "What is left"].map((name) => {
    const canvas = picture(blank, model.shape, name, 1);
    const caption = el("span", {}, name);
    return { canvas, caption, element: el("div", { class: "summand" }, el("div", { class: "frame" }, canvas), caption) };
  });
  const answer = el("h3", { class: "answer", "aria-live": "polite" });
  const verdict = el("p", { class: "note" });
  const scores = el("div");
  const tiles = el("div", { class: "terms" });
  const table = el("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": "The sum in numbers" });
  const features = el("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": "The features in numbers" });
  const check = el("p", { class: "note adds" });
  const made = new Map();

  function term(part) {
    const slider = el("input", {
      type: "range",
      min: "0",
      max: "200",
      step: "5",
      value: "100",
      "aria-label": `Amount of part ${part}, in percent of what was found`,
      oninput: () => {
        slider.setAttribute("aria-valuetext", `${slider.value} %`);
        on.change(part, Number(slider.value) / 100);
      },
    });
    const amount = el("b");
    const adds = el("small");
    const element = el(
      "div",
      { class: "term" },
      el("a", { class: "frame", href: `#parts/${part}`, "aria-label": `Part ${part}: look at it` }, picture(decode(images.get(part)), model.shape, "", 1)),
      amount,
      adds,
      slider,
    );
    return { element, slider, amount, adds };
  }

  function show(view, fresh) {
    const least = largest(view.input.concat(view.reconstruction)) || 1;
    [view.input, view.reconstruction, view.residual].forEach((values, k) => sums[k].canvas.show(values, least));
    sums[2].caption.textContent = `What is left: ${percent(view.unexplained)}`;
    const top = view.answer ?? view.y.indexOf(Math.max(...view.y));
    const name = model.outputs[top];
    answer.textContent = view.answer === null ? (model.outputs.length ? "What it says" : "Is it known?") : `Answer: ${name}`;
    answer.className = `answer${view.label !== null && view.answer !== null && view.label !== view.answer ? " wrong" : ""}`;
    verdict.textContent = sentence(view, model);
    const most = Math.max(1e-12, ...view.y.concat(view.before).map(Math.abs));
    const changed = view.y.some((y, k) => Math.abs(y - view.before[k]) > 1e-9);
    scores.replaceChildren(
      bars(model.outputs, view.y, { limit: most, text: number, chosen: view.answer ?? -1, marks: changed ? view.before : [], label: "Scores" }),
    );
    if (fresh) {
      made.clear();
      tiles.replaceChildren();
    }
    for (const { part, amount, contributions } of view.terms) {
      if (!made.has(part)) {
        made.set(part, term(part));
        tiles.append(made.get(part).element);
      }
      const { amount: text, adds } = made.get(part);
      text.textContent = `× ${number(amount)}`;
      adds.textContent = model.outputs.length ? `${signed(contributions[top])} for ${name}` : `part ${part}`;
    }
    features.replaceChildren(featureTable(view, model));
    table.replaceChildren(sumTable(view, model, top));
    check.textContent = adding(view);
  }

  const modes = [
    ["stay", "stay as they are"],
    ["adapt", "make the best of it"],
  ];
  const element = el(
    "div",
    {},
    el("div", { class: model.shape ? "equation" : "equation barred" }, sums[0].element, el("span", { class: "sign" }, "="), sums[1].element, el("span", { class: "sign" }, "+"), sums[2].element),
    el("div", { class: "said" }, el("div", {}, answer, verdict), model.outputs.length ? scores : null),
    el("h3", {}, "The parts"),
    el("p", { class: "note" }, "The largest ones, with their amounts. Move a slider to have more or less of one."),
    el(
      "div",
      { class: "controls tight" },
      model.can_adapt ? choice("The other parts", "others", modes, "stay", (key) => on.adapt(key === "adapt")) : null,
      el("button", { class: "plain", onclick: () => on.reset() }, "Reset the amounts"),
    ),
    tiles,
    model.outputs.length ? [el("h3", {}, "The sum"), table, check] : null,
    model.shape ? null : [el("h3", {}, "The features"), features],
  );
  return { element, show };
}

function sentence(view, model) {
  const words = [];
  if (view.label !== null && view.answer !== null) {
    words.push(view.label === view.answer ? "That is right." : `It is a ${model.outputs[view.label]}.`);
  }
  const p = view.recognition;
  words.push(
    `Recognition: p ${p < 0.001 ? "< 0.001" : `= ${p.toFixed(3)}`}. Of the inputs it should know, ${percent(p, p < 0.1 ? 1 : 0)} are explained as badly or worse` +
      (p < 0.05 ? ", so this is unlike what it learned." : "."),
  );
  return words.join(" ");
}

function sumTable(view, model, top) {
  const most = Math.max(1e-12, ...view.terms.concat(view.others).flatMap((term) => term.contributions.map(Math.abs)));
  const cell = (value) =>
    el("td", { class: value < 0 ? "minus" : undefined, style: { "--strength": `${Math.round((70 * Math.abs(value)) / most)}%` } }, signed(value));
  const row = (head, amount, values) => el("tr", {}, el("th", { scope: "row" }, head), el("td", { class: "plain" }, amount), values.map(cell));
  return el(
    "table",
    { class: "sum" },
    el("caption", {}, model.classes ? "What each part adds to the score of each class." : "What each part adds to each output."),
    el(
      "thead",
      {},
      el("tr", {}, el("th", { scope: "col" }, "part"), el("th", { scope: "col" }, "amount"), model.outputs.map((name, k) => el("th", { scope: "col", class: k === top ? "wins" : undefined }, name))),
    ),
    el(
      "tbody",
      {},
      view.terms.map((term) => row(el("a", { href: `#parts/${term.part}` }, String(term.part)), number(term.amount), term.contributions)),
      view.others.part ? row(`${view.others.part} others`, number(view.others.amount), view.others.contributions) : null,
      view.base.some((b) => b !== 0) ? row("base", "", view.base) : null,
    ),
    el(
      "tfoot",
      {},
      el("tr", {}, el("th", { scope: "row" }, "sum"), el("td", {}), view.y.map((y, k) => el("td", { class: k === top ? "wins" : undefined }, number(y)))),
    ),
  );
}

function featureTable(view, model) {
  if (model.shape) return "";
  const row = (name, k) =>
    el("tr", {}, el("th", { scope: "row" }, name), [view.input, view.reconstruction, view.residual].map((values) => el("td", {}, number(values[k]))));
  return el(
    "table",
    {},
    el("caption", {}, "Each feature: as given, as the parts add up to it, and what is left."),
    el("thead", {}, el("tr", {}, ["feature", "input", "sum of parts", "left"].map((name) => el("th", { scope: "col" }, name)))),
    el("tbody", {}, featureNames(model).slice(0, 200).map(row)),
  );
}

function adding(view) {
  const total = view.y.map((_, k) => view.base[k] + view.others.contributions[k] + view.terms.reduce((sum, term) => sum + term.contributions[k], 0));
  const error = Math.max(0, ...total.map((sum, k) => Math.abs(sum - view.y[k])));
  const holds = error <= 1e-4 * Math.max(1, ...view.y.map(Math.abs));
  return holds ? "Added up on this page, the rows give the sums shown." : `The rows differ from the sums by ${error.toExponential(1)}.`;
}
