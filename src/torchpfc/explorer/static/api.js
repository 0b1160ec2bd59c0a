// What the server answers, or an error with its own words.

export class Refused extends Error {}

let pending = 0;

// Says on the page how many answers it waits for, also to those who test it.
function wait(by) {
  pending += by;
  document.documentElement.dataset.pending = String(pending);
}

async function ask(path, options) {
  wait(1);
  try {
    const response = await fetch(path, options).catch(() => {
      throw new Refused("The server does not answer. Is it still running?");
    });
    const body = await response.json().catch(() => ({}));
    if (!response.ok) throw new Refused(body.problem ?? `The server answered ${response.status}.`);
    return body;
  } finally {
    wait(-1);
  }
}

export const get = (path) => ask(path);

export const post = (path, body = {}) =>
  ask(path, { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body) });

// Calls an asynchronous function, one call at a time: of those that come in meanwhile, only the last is made.
export function latest(work) {
  let busy = false;
  let next = null;
  return async function call(...args) {
    if (busy) {
      next = args;
      return;
    }
    busy = true;
    try {
      await work(...args);
    } finally {
      busy = false;
      if (next) {
        const waiting = next;
        next = null;
        call(...waiting);
      }
    }
  };
}
