// The atlas: every part, in an order of one's choice, and all that is known of one of them.

import { get } from "./api.js";
import { bars, check, choice, count, el, featureNames, number, percent, ranges, roving, select } from "./dom.js";
import { decode, laterPicture, picture } from "./pictures.js";

const PAGE = 400; // parts that are laid out at once
const MOST_NAMED = 60; // features that are listed one by one

const ORDERS = {
  use: ["Use", (a, b) => b.usage - a.usage || b.mean_amount - a.mean_amount],
  class: ["Class", (a, b) => (a.output ?? Infinity) - (b.output ?? Infinity) || b.usage - a.usage],
  age: ["Age", (a, b) => (a.first_step ?? Infinity) - (b.first_step ?? Infinity) || a.column - b.column],
};

export async function partsView(section, state) {
  const { model, parts } = state;
  const chosen = { order: model.classes ? "class" : "use", output: "", hide: false, limit: PAGE };
  const long = model.outputs.some((name) => name.length > 3);
  const atlas = el("div", { class: long ? "atlas named" : "atlas" });
  const summary = el("p", { class: "note" });
  const aside = el("aside", { class: "detail", "aria-label": "The chosen part", tabindex: "-1", hidden: true });
  const refreshStops = roving(atlas, "button.tile");
  let marked = null;

  const orders = Object.entries(ORDERS).filter(([key]) => key !== "class" || model.classes);
  const names = model.outputs.map((name, k) => [String(k), name]);

  function tile(part) {
    const name = part.output === null || !model.classes ? null : model.outputs[part.output];
    const words = [`Part ${part.column}`, part.gone ? "forgotten" : `used by ${percent(part.usage, 0)}`, name && `speaks for ${name}`];
    return el(
      "button",
      {
        class: `tile${part.gone ? " gone" : part.dead ? " dead" : ""}`,
        "data-part": part.column,
        "aria-pressed": "false",
        "aria-label": words.filter(Boolean).join(", "),
        title: words.filter(Boolean).join(", "),
        onclick: () => state.go(`parts/${part.column}`),
      },
      laterPicture(part.image, model.shape, ""),
      el("span", { "aria-hidden": "true" }, chosen.order === "age" ? `${part.first_step ?? "–"}` : percent(part.usage, 0)),
    );
  }

  function draw() {
    let listed = parts.filter((part) => chosen.output === "" || String(part.output) === chosen.output);
    if (chosen.hide) listed = listed.filter((part) => !part.dead && !part.gone);
    listed.sort((a, b) => ORDERS[chosen.order][1](a, b) || a.column - b.column);
    const cut = listed.slice(0, chosen.limit);
    if (chosen.order === "class") {
      const groups = Map.groupBy ? Map.groupBy(cut, (part) => part.output) : group(cut);
      atlas.replaceChildren(
        ...[...groups].map(([output, members]) =>
          el(
            "div",
            { class: "row" },
            el("h3", {}, output === null ? "none" : model.outputs[output]),
            el("div", { class: "tiles" }, members.map(tile)),
          ),
        ),
      );
    } else atlas.replaceChildren(el("div", { class: "tiles" }, cut.map(tile)));
    const more = listed.length - cut.length;
    if (more > 0) {
      const show = () => {
        chosen.limit += PAGE;
        draw();
      };
      atlas.append(el("button", { class: "plain", onclick: show }, `Show ${Math.min(PAGE, more)} more of ${more}`));
    }
    const below = chosen.order === "age" ? "the step at which it was first written" : "the share of examples that contain it";
    summary.textContent =
      `${count(listed.length, "part")}${chosen.order === "class" ? ", in the row of the class that each speaks for most" : ""}. ` +
      `Below each is ${below}. Each picture is scaled to its own largest number.`;
    mark(marked);
    refreshStops();
  }

  function mark(column) {
    marked = column;
    for (const button of atlas.querySelectorAll("button.tile")) {
      button.setAttribute("aria-pressed", String(Number(button.dataset.part) === column));
    }
  }

  function close() {
    aside.hidden = true;
    section.classList.remove("open");
    const button = atlas.querySelector(`[data-part="${marked}"]`);
    mark(null);
    history.replaceState(null, "", "#parts");
    button?.focus();
  }

  async function open(argument) {
    const found = await state.guarded(() => get(`/api/parts/${encodeURIComponent(argument)}`));
    if (!found) return;
    mark(found.column);
    aside.replaceChildren(...detail(found, state, close));
    aside.hidden = false;
    section.classList.add("open");
    aside.scrollTop = 0;
    aside.focus({ preventScroll: true });
    atlas.querySelector(`[data-part="${found.column}"]`)?.scrollIntoView({ block: "nearest" });
  }

  const main = el(
    "div",
    {},
    el(
      "div",
      { class: "intro" },
      el("h2", {}, "What it is made of"),
      el("p", {}, "Every input is read as a sum of these parts. Choose one to see what it stands for, who contains it, and where it comes from."),
    ),
    el(
      "div",
      { class: "controls" },
      choice("Sort by", "order", orders.map(([key, [text]]) => [key, text]), chosen.order, (key) => {
        chosen.order = key;
        draw();
      }),
      model.classes ? select("Class", [["", "all"], ...names], "", (key) => ((chosen.output = key), draw())) : null,
      check("Hide parts that no example contains", false, (on) => ((chosen.hide = on), draw())),
    ),
    summary,
    atlas,
  );
  section.replaceChildren(el("div", { class: "beside" }, main, aside));
  section.onkeydown = (event) => {
    if (event.key === "Escape" && !aside.hidden) close();
  };
  draw();
  return open;
}

function group(parts) {
  const groups = new Map();
  for (const part of parts) groups.set(part.output, [...(groups.get(part.output) ?? []), part]);
  return groups;
}

function detail(part, state, close) {
  const { model } = state;
  const heading = el("h3", {}, `Part ${part.column}`);
  const facts = [
    ["used by", `${percent(part.usage)} of the examples`],
    ["mean amount", number(part.mean_amount)],
    ["first written", part.first_step === null ? "not in the ledger" : `step ${part.first_step}`],
  ];
  return [
    el("div", { class: "bar" }, heading, el("button", { class: "plain", onclick: close, "aria-label": "Close" }, "Close")),
    part.gone ? el("p", { class: "note" }, "Forgotten: all its weights are zero.") : null,
    el("div", { class: "large frame" }, picture(part.values, model.shape, `Part ${part.column}`)),
    model.shape || model.num_features > MOST_NAMED ? null : bars(featureNames(model), part.values, { text: number }),
    el("dl", { class: "short" }, facts.map(([term, text]) => el("div", {}, el("dt", {}, term), el("dd", {}, text)))),
    part.profile.length ? [el("h4", {}, model.classes ? "Which class it speaks for" : "What it adds to"), bars(model.outputs, part.profile, { limit: 1 })] : null,
    part.label_shares.length
      ? [el("h4", {}, "Whose examples contain it"), bars(model.outputs.slice(0, part.label_shares.length), part.label_shares, { limit: 1 })]
      : null,
    el("h4", {}, "Examples with most of it"),
    part.top_examples.length
      ? el(
          "div",
          { class: "tiles" },
          part.top_examples.map((example) =>
            el(
              "button",
              {
                class: "tile",
                "aria-label": `Example ${example.index}, contains ${number(example.amount)}; look at it`,
                onclick: () => state.go(`input/${example.index}`),
              },
              picture(decode(example.image), model.shape, "", 1),
              el("span", { "aria-hidden": "true" }, number(example.amount)),
            ),
          ),
        )
      : el("p", { class: "note" }, "None."),
    el("h4", {}, "Batches that could write it"),
    part.batches.length
      ? el(
          "p",
          { class: "note" },
          `${ranges(part.batches)} `,
          el("button", { class: "plain", onclick: () => state.go(`forget/${part.batches.join(",")}`) }, "See what forgetting them does"),
        )
      : el("p", { class: "note" }, "None that the ledger knows of."),
  ].flat().filter(Boolean);
}
