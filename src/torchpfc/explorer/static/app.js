// The page: loads what the model is, shows one of four views, and tells them when something has changed.

import { get, post, Refused } from "./api.js";
import { count, el, percent, ranges } from "./dom.js";
import { forgetView } from "./forget.js";
import { inputView } from "./input.js";
import { partsView } from "./parts.js";
import { timeView } from "./time.js";

const views = { parts: partsView, input: inputView, time: timeView, forget: forgetView };
const shown = {}; // the version of the model that each view was last made for
const state = { model: null, parts: [], say, refresh, go, guarded };

let fading = null;

function say(text) {
  document.getElementById("status").textContent = text;
  clearTimeout(fading);
  if (text) fading = setTimeout(() => say(""), 10000);
}

// Runs what may be refused, and says why.
async function guarded(work) {
  try {
    return await work();
  } catch (error) {
    if (!(error instanceof Refused)) throw error;
    say(error.message);
    return null;
  }
}

async function refresh() {
  const [model, { parts }] = await Promise.all([get("/api/model"), get("/api/parts")]);
  Object.assign(state, { model, parts });
  header();
  await route();
}

function header() {
  const { model } = state;
  document.title = `${model.name} · torchpfc explorer`;
  document.getElementById("title").textContent = model.name;
  const right = model.accuracy.overall;
  const gone = state.parts.filter((part) => part.gone).length;
  const parts = gone ? `${count(model.num_parts - gone, "part")} left of ${model.num_parts}` : count(model.num_parts, "part");
  document.getElementById("summary").textContent =
    right === null
      ? `A ${model.kind} with ${parts}, looked at with ${count(model.num_examples, "example")} (${model.source}).`
      : `A ${model.kind} with ${parts}. It answers ${percent(right)} of ${count(model.num_examples, "example")} (${model.source}) rightly.`;
  const changed = document.getElementById("changed");
  changed.hidden = !model.undo;
  changed.replaceChildren(
    el("span", {}, `Forgotten in this copy: batches ${ranges(model.forgotten)}. The files are as they were.`),
    el("button", { class: "plain", id: "undo", onclick: undo }, "Undo"),
    el("a", { class: "plain", id: "report", href: "/api/report", download: "" }, "Download the report"),
  );
  document.getElementById("facts").textContent =
    `${count(model.num_features, "number")} an input, ${count(model.outputs.length, "output")}, ` +
    `${count(model.num_batches, "batch", "batches")} in the ledger, sha256 ${model.sha256.slice(0, 16)}…. ` +
    "This page loads nothing from anywhere but this machine, and changes copies only.";
}

async function undo() {
  await guarded(async () => {
    await post("/api/undo");
    await refresh();
    say(`Taken back. ${state.model.accuracy.overall === null ? "" : `Accuracy ${percent(state.model.accuracy.overall)}.`}`);
  });
}

async function route() {
  const [name, argument] = location.hash.slice(1).split("/");
  const view = views[name] ? name : "parts";
  for (const other of Object.keys(views)) {
    document.getElementById(`view-${other}`).hidden = other !== view;
    const link = document.querySelector(`nav a[href="#${other}"]`);
    if (other === view) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  const section = document.getElementById(`view-${view}`);
  if (shown[view]?.version !== state.model.version) {
    shown[view] = { version: state.model.version, open: await views[view](section, state) };
  }
  if (argument !== undefined) await shown[view].open?.(argument);
}

function go(hash) {
  if (location.hash === `#${hash}`) route();
  else location.hash = hash;
}

addEventListener("hashchange", () => {
  if (location.hash === "#main") return;
  guarded(route);
});

guarded(refresh).then(() => {
  document.body.dataset.ready = "1";
  if (!state.model) document.getElementById("title").textContent = "The model could not be loaded";
});
