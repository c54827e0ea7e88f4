// The history of one subtask, read from the job's logs a page at a time.
import { byId, cells, clock, duration, fill, make, number, setText } from "./dom.js";

const TIMEOUT_MS = 60000;
let asked = 0; // number of the newest request: what an older one answers is not shown
let showing = null;

export function openHistory(operator, index) {
  showing = { operator, index, before: [] };
  setText(byId("history-title"), `History of ${operator}/${index}`);
  byId("history").showModal();
  load(null);
}

async function load(before) {
  const request = ++asked;
  setText(byId("history-says"), "reading the log …");
  byId("history-older").disabled = byId("history-newer").disabled = true;
  let page = null;
  let trouble = "";
  try {
    const query = new URLSearchParams({ operator: showing.operator, subtask: showing.index });
    if (before !== null) query.set("before", before);
    const answer = await fetch(`api/subtask?${query}`, { signal: AbortSignal.timeout(TIMEOUT_MS) });
    if (answer.ok) page = await answer.json();
    else trouble = await answer.text();
  } catch (error) {
    trouble = `the dashboard did not answer (${error.message})`;
  }
  if (request !== asked) return;
  byId("history-newer").disabled = !showing.before.length;
  if (!page) {
    setText(byId("history-says"), `The log cannot be read: ${trouble}`);
    return;
  }
  showing.older = page.older;
  showing.at = before;
  byId("history-older").disabled = page.older === null;
  const latency = page.latency;
  const took = latency ? ` Sent to handled, of ${number(latency.frames)} frames here: p50 ${duration(latency.p50_ms)}, p99 ${duration(latency.p99_ms)}.` : "";
  const beats = page.heartbeats ? ` ${number(page.heartbeats)} heartbeats are left out.` : "";
  setText(byId("history-says"), `${number(page.rows.length)} records, newest first.${took}${beats} ${page.notes.join(". ")}`);
  fill(document.querySelector("#history tbody"), page.rows, cells("", "", "", "number", "number", "number", "text"), (row, r) => {
    const millis = `${r.at_ms % 1000}`.padStart(3, "0");
    const texts = [`${clock(r.at_ms)}.${millis}`, `${r.topic}@${r.offset}`, r.kind, r.epoch ?? "–", r.attempt ?? "–", r.sequence];
    texts.forEach((text, index) => setText(row.children[index], `${text}`));
    const what = row.children[6];
    if (!what.firstChild) what.append(make("pre"));
    setText(what.firstChild, r.what);
    row.className = r.kind === "failed" ? "bad" : "";
  });
  document.querySelector("#history .scroll").scrollTop = 0;
}

export function setUpHistory() {
  byId("history-close").addEventListener("click", () => byId("history").close());
  byId("history").addEventListener("close", () => { asked += 1; });
  byId("history-older").addEventListener("click", () => {
    showing.before.push(showing.at);
    load(showing.older);
  });
  byId("history-newer").addEventListener("click", () => load(showing.before.pop()));
}
