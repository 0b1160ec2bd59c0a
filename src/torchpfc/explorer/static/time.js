// The training, stage by stage: which parts it left behind, and what the model knew at each time.

import { get } from "./api.js";
import { count, el, percent, ranges, roving } from "./dom.js";
import { laterPicture } from "./pictures.js";

export async function timeView(section, state) {
  const { model, parts } = state;
  const found = await state.guarded(() => get("/api/time"));
  if (!found) return;
  const { stages, batches, exact } = found;
  const intro = el(
    "div",
    { class: "intro" },
    el("h2", {}, "How it was learned"),
    el("p", {}, "Batches came one after another, and each could write some columns only. What was left behind did not change any more."),
  );
  if (stages.length < 2) {
    const why = batches.length
      ? "All parts of this model were learned from one batch, so there is no before and after. A model that learns in stages (partial_fit with batches, or a window) has more to show here."
      : "This model has no ledger, so nothing is known of the order in which it learned.";
    section.replaceChildren(intro, el("p", { class: "note" }, why));
    return;
  }

  const rows = stages.map((stage, k) => {
    const tiles = stage.finished.map((column) => {
      const part = parts[column];
      return el(
        "a",
        { class: `tile${part.gone ? " gone" : ""}`, href: `#parts/${column}`, "aria-label": `Part ${column}`, title: `Part ${column}` },
        laterPicture(part.image, model.shape, ""),
      );
    });
    const label = `${stage.batches.length === 1 ? "batch" : "batches"} ${ranges(stage.batches)}`;
    return el(
      "div",
      { class: "row", "data-stage": k },
      el("h3", {}, label),
      el("div", { class: "tiles" }, tiles.length ? tiles : el("span", { class: "note" }, "nothing is left of it")),
    );
  });

  const cells = stages.map((stage, k) =>
    el(
      "tr",
      { "data-stage": k },
      el("th", { scope: "row" }, ranges(stage.batches)),
      stage.accuracy.per_class.map((share) =>
        el("td", { style: { "--strength": `${Math.round(70 * (share ?? 0))}%` } }, share === null ? "–" : `${Math.round(100 * share)}`),
      ),
      el("td", { class: "wins" }, stage.accuracy.overall === null ? "–" : `${(100 * stage.accuracy.overall).toFixed(1)}`),
    ),
  );

  const told = el("p", { class: "told", "aria-live": "polite" });
  const slider = el("input", {
    type: "range",
    min: "1",
    max: String(stages.length),
    value: String(stages.length),
    "aria-label": "Time, in stages",
    oninput: () => {
      stop();
      at(Number(slider.value));
    },
  });
  const windowBar = el("div", { class: "window", "aria-hidden": "true" });
  const play = el("button", { class: "plain", onclick: () => (timer ? stop() : start()) }, "Play");
  let timer = null;

  function at(stage) {
    slider.value = String(stage);
    for (const row of [...rows, ...cells]) {
      const k = Number(row.dataset.stage);
      row.classList.toggle("later", k >= stage);
      row.classList.toggle("now", k === stage - 1);
    }
    const now = stages[stage - 1];
    const right = now.accuracy.overall;
    const columns = now.columns.length ? `could write columns ${now.columns.map(([a, b]) => (b - a === 1 ? a : `${a}–${b - 1}`)).join(", ")}` : "left nothing";
    told.textContent =
      `Stage ${stage} of ${stages.length}: ${count(now.batches.length, "batch", "batches")} (${ranges(now.batches)}) ${columns}.` +
      (right === null ? "" : ` After it, ${percent(right)} of all examples are answered rightly.`);
    slider.setAttribute("aria-valuetext", told.textContent);
    windowBar.replaceChildren(
      ...now.columns.map(([a, b]) =>
        el("i", { style: { left: `${(100 * a) / model.num_parts}%`, width: `${(100 * (b - a)) / model.num_parts}%` } }),
      ),
    );
  }

  function stop() {
    clearInterval(timer);
    timer = null;
    play.textContent = "Play";
  }

  function start() {
    let stage = Number(slider.value) >= stages.length ? 0 : Number(slider.value);
    play.textContent = "Stop";
    timer = setInterval(() => {
      stage += 1;
      if (stage > stages.length || section.hidden) stop();
      else at(stage);
    }, 700);
    at(Math.max(1, stage));
  }

  const known = stages.some((stage) => stage.accuracy.overall !== null);
  section.replaceChildren(
    intro,
    el("div", { class: "scrub" }, play, slider),
    windowBar,
    told,
    el("div", { class: "atlas strip" }, rows),
    el("p", { class: "note" }, "One row for each stage: the columns that it was the last to write. The bar above shows all columns from left to right, and where the stage could write."),
    ...(known
      ? [
          el("h3", { class: "apart" }, "What it knew"),
          el(
            "div",
            { class: "scroll", tabindex: "0", role: "group", "aria-label": "Accuracy after each stage" },
            el(
              "table",
              { class: "matrix" },
              el("caption", {}, "Accuracy in % after each stage (rows, by their batches), on the examples of each class (columns)."),
              el("thead", {}, el("tr", {}, el("th", { scope: "col" }, "batches"), model.outputs.map((name) => el("th", { scope: "col" }, name)), el("th", { scope: "col" }, "all"))),
              el("tbody", {}, cells),
            ),
          ),
          el(
            "p",
            { class: "note" },
            exact
              ? "Every column was written by one stage only, so the model of each time is this one without the columns that came later."
              : "Stages share columns here. Each row is this model without the columns that later stages wrote too, so it shows a little less than was known at the time.",
          ),
        ]
      : []),
  );
  roving(section.querySelector(".strip"), "a.tile");
  at(stages.length);
}
