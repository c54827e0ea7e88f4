// The list of jobs, asked for again and again.
import { byId, cells, duration, fill, make, number, setClass, setText, size, slug } from "./dom.js";

const EVERY_MS = 2000;
const TIMEOUT_MS = 10000;

function show(told, lost) {
  const jobs = told.jobs ?? [];
  setText(byId("prefix"), `Prefix ${told.prefix}`);
  const trouble = lost ? "No connection to the dashboard; trying again." : told.trouble && `The broker cannot be looked at: ${told.trouble}. Trying again.`;
  setText(byId("notice"), trouble || "");
  byId("notice").hidden = !trouble;
  const stale = Boolean(trouble);
  setClass(document.querySelector("main"), stale ? "stale" : "");
  const age = told.looked_ms ? duration(Math.max(0, told.now_ms - told.looked_ms)) : "";
  setText(byId("connection"), told.jobs === null ? "looking …" : `${stale ? "not live: " : ""}looked ${age} ago`);
  setText(byId("none"), told.jobs === null ? "Looking for jobs …" : `No job under prefix ${told.prefix} on this broker.`);
  byId("none").hidden = jobs.length > 0;
  fill(document.querySelector("#jobs tbody"), jobs, create, (row, job) => {
    row.dataset.job = job.job;
    const link = row.firstChild.firstChild;
    setText(link, job.job);
    link.href = `/jobs/${encodeURIComponent(job.job)}/`;
    const known = job.age_s >= 0;
    setText(row.children[1].firstChild, job.state);
    setClass(row.children[1].firstChild, `badge ${slug(job.state)}`);
    const texts = [
      known ? `${number(job.running)} of ${number(job.subtasks)}` : "–", known ? `${job.epoch}` : "–",
      !known ? "–" : job.last_completed < 0 ? "none" : `${job.last_completed}`, known ? number(job.failovers) : "–",
      number(job.partitions), job.bytes < 0 ? "?" : size(job.bytes), known ? `${duration(job.age_s * 1000)} ago` : "–",
    ];
    texts.forEach((text, index) => setText(row.children[index + 2], text));
  });
}

function create() {
  const row = cells("", "", "number", "number", "number", "number", "number", "number", "number")();
  row.firstChild.append(make("a"));
  row.children[1].append(make("span"));
  return row;
}

let told = JSON.parse(byId("first-told").textContent);
show(told, false);
for (;;) {
  await new Promise((resolve) => setTimeout(resolve, told.jobs === null ? 300 : EVERY_MS));
  if (document.hidden) continue;
  try {
    const answer = await fetch("/api/jobs", { signal: AbortSignal.timeout(TIMEOUT_MS) });
    if (!answer.ok) throw new Error(`${answer.status}`);
    told = await answer.json();
    show(told, false);
  } catch {
    show(told, true);
  }
}
