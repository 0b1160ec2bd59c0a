// Taking knowledge out: which batches, which columns go with them, what becomes of the accuracy; then do it, or undo it.

import { get, latest, post } from "./api.js";
import { count, el, percent, ranges, roving } from "./dom.js";
import { laterPicture } from "./pictures.js";

const MOST_CHIPS = 400;

// "0:3, 7" as on the command line: half-open ranges and numbers.
export function parse(text) {
  const found = new Set();
  for (const part of text.split(",").map((piece) => piece.trim()).filter(Boolean)) {
    const match = /^(\d+)(?::(\d+))?$/.exec(part);
    if (!match) return null;
    const start = Number(match[1]);
    const stop = match[2] === undefined ? start + 1 : Number(match[2]);
    if (stop - start > 100000) return null;
    for (let id = start; id < stop; id++) found.add(id);
  }
  return found;
}

export function spell(ids) {
  const runs = [];
  for (const id of [...ids].sort((a, b) => a - b)) {
    const last = runs.at(-1);
    if (last && id === last[1]) last[1] = id + 1;
    else runs.push([id, id + 1]);
  }
  return runs.map(([a, b]) => (b - a === 1 ? `${a}` : `${a}:${b}`)).join(", ");
}

export async function forgetView(section, state) {
  const { model } = state;
  const found = await state.guarded(() => get("/api/batches"));
  if (!found) return;
  const { batches } = found;
  const open = batches.filter((batch) => batch.num_columns > 0);
  const chosen = new Set();
  const preview = el("div", { class: "preview" });

  const field = el("input", {
    type: "text",
    inputmode: "numeric",
    autocomplete: "off",
    spellcheck: "false",
    placeholder: "0:3, 7",
    "aria-describedby": "batches-help",
    onchange: () => {
      const ids = parse(field.value);
      field.setAttribute("aria-invalid", String(ids === null));
      if (ids === null) state.say("Batches must be numbers or ranges such as 0:3, 7.");
      else choose(ids);
    },
  });
  const chips = el("div", { class: "chips", role: "group", "aria-label": "Batches" });
  const classes = el("div", { class: "chips", role: "group", "aria-label": "Classes" });

  function choose(ids) {
    chosen.clear();
    ids.forEach((id) => chosen.add(id));
    field.value = spell(chosen);
    field.setAttribute("aria-invalid", "false");
    for (const chip of chips.children) chip.setAttribute("aria-pressed", String(chosen.has(Number(chip.dataset.batch))));
    for (const chip of classes.children) {
      const own = open.filter((batch) => String(batch.output) === chip.dataset.output);
      chip.setAttribute("aria-pressed", String(own.length > 0 && own.every((batch) => chosen.has(batch.id))));
    }
    look();
  }

  function toggle(ids) {
    const all = ids.every((id) => chosen.has(id));
    const next = new Set(chosen);
    ids.forEach((id) => (all ? next.delete(id) : next.add(id)));
    choose(next);
  }

  const look = latest(async () => {
    if (!chosen.size) {
      preview.replaceChildren(el("p", { class: "note" }, "Choose batches or a class to see what forgetting them does. Nothing is changed until you say so."));
      return;
    }
    const ids = [...chosen].sort((a, b) => a - b);
    try {
      const view = await post("/api/forget/preview", { batches: ids });
      preview.replaceChildren(...describe(view, state, () => apply(ids)));
      state.say("");
    } catch (error) {
      preview.replaceChildren(el("p", { class: "problem" }, error.message));
    }
  });

  function apply(ids) {
    return state.guarded(async () => {
      const view = await post("/api/forget", { batches: ids });
      await state.refresh();
      state.say(
        `Forgot ${count(view.batches.length, "batch", "batches")} in a copy` +
          (view.after.overall === null ? "." : `: accuracy ${percent(view.before.overall)} → ${percent(view.after.overall)}.`),
      );
    });
  }

  if (model.classes) {
    model.outputs.forEach((name, k) => {
      const own = open.filter((batch) => batch.output === k).map((batch) => batch.id);
      const words = own.length ? `Class ${name}: batches ${ranges(own)}` : `Class ${name}: no batch that is there taught mostly this class`;
      classes.append(
        el("button", { class: "chip", "data-output": k, "aria-pressed": "false", disabled: !own.length, title: words, "aria-label": words, onclick: () => toggle(own) }, name),
      );
    });
  }
  if (batches.length <= MOST_CHIPS) {
    for (const batch of batches) {
      const name = batch.output === null ? "" : `, taught ${model.outputs[batch.output]}`;
      const words = batch.num_columns ? `Batch ${batch.id}${name}, ${count(batch.num_columns, "column")}` : `Batch ${batch.id}, forgotten`;
      chips.append(
        el(
          "button",
          { class: "chip", "data-batch": batch.id, "aria-pressed": "false", disabled: !batch.num_columns, title: words, "aria-label": words, onclick: () => toggle([batch.id]) },
          String(batch.id),
        ),
      );
    }
  }
  [chips, classes].forEach((group) => roving(group, "button.chip:not([disabled])"));

  section.replaceChildren(
    el(
      "div",
      { class: "intro" },
      el("h2", {}, "What it can forget"),
      el("p", {}, "The ledger knows which columns each batch could write. Forgetting sets exactly these to zero, in a copy: the files of the model stay as they are."),
    ),
    ...(open.length > 1 || model.undo
      ? [
          el(
            "div",
            { class: "split" },
            el(
              "div",
              { class: "chooser" },
              model.classes ? [el("h3", {}, "A class"), classes] : null,
              el("h3", {}, "Batches"),
              batches.length <= MOST_CHIPS ? chips : el("p", { class: "note" }, `${count(batches.length, "batch", "batches")}, ${batches[0].id} to ${batches.at(-1).id}.`),
              el("label", { class: "field" }, el("span", {}, "By number"), field),
              el("p", { class: "note", id: "batches-help" }, "Numbers and half-open ranges: 0:3, 7 is 0, 1, 2 and 7."),
            ),
            preview,
          ),
        ]
      : [
          el(
            "p",
            { class: "note" },
            batches.length
              ? "All parts were learned from one batch, so without it nothing would be left. A model that learns in stages (partial_fit with batches, or a window) can forget some of them."
              : "This model has no ledger, so nobody knows which batch wrote what.",
          ),
        ]),
  );
  choose([]);
  return (argument) => {
    const ids = parse(argument);
    if (ids && (open.length > 1 || model.undo)) choose([...ids].filter((id) => !model.forgotten.includes(id)));
  };
}

function describe(view, state, apply) {
  const { model, parts } = state;
  const columns = view.columns.flatMap(([a, b]) => Array.from({ length: b - a }, (_, k) => a + k)).filter((c) => parts[c] && !parts[c].gone);
  const facts = [[`${view.num_columns} of ${model.num_parts}`, `columns go (${percent(view.share)})`]];
  if (view.after.overall !== null) {
    facts.push([`${percent(view.before.overall)} → ${percent(view.after.overall)}`, "accuracy on all examples"]);
  }
  const others = view.others_affected.length;
  facts.push([String(others), others === 1 ? "other batch loses something too" : "other batches lose something too"]);
  return [
    el("h3", {}, `Without ${view.batches.length === 1 ? "batch" : "batches"} ${ranges(view.batches)}`),
    el("dl", { class: "facts" }, facts.map(([value, text]) => el("div", {}, el("dt", {}, text), el("dd", {}, value)))),
    view.unrecorded.length ? el("p", { class: "note" }, `Not in the ledger: ${ranges(view.unrecorded)}.`) : null,
    view.after.per_class.length
      ? el(
          "div",
          { class: "scroll" },
          el(
            "table",
            { class: "matrix" },
            el("caption", {}, "Accuracy in % on the examples of each class."),
            el("thead", {}, el("tr", {}, el("th", { scope: "col" }, ""), model.outputs.map((name) => el("th", { scope: "col" }, name)))),
            el(
              "tbody",
              {},
              [["before", view.before], ["after", view.after]].map(([name, accuracy]) =>
                el(
                  "tr",
                  {},
                  el("th", { scope: "row" }, name),
                  accuracy.per_class.map((share) => el("td", { style: { "--strength": `${Math.round(70 * (share ?? 0))}%` } }, share === null ? "–" : `${Math.round(100 * share)}`)),
                ),
              ),
            ),
          ),
        )
      : null,
    el("div", { class: "buttons" }, el("button", { class: "strong", onclick: apply }, "Forget them in the copy")),
    el("h4", {}, "Columns that go"),
    el(
      "div",
      { class: "tiles" },
      columns.slice(0, 120).map((c) => el("a", { class: "tile", href: `#parts/${c}`, "aria-label": `Part ${c}`, title: `Part ${c}` }, laterPicture(parts[c].image, model.shape, ""))),
    ),
    columns.length > 120 ? el("p", { class: "note" }, `and ${columns.length - 120} more`) : null,
    el("h4", {}, "What this guarantees"),
    el("ul", {}, view.guaranteed.map((text) => el("li", {}, text))),
    el("h4", {}, "What it does not"),
    el("ul", {}, view.not_guaranteed.map((text) => el("li", {}, text))),
  ].filter(Boolean);
}
