// A job's page: the first state comes with it, then a stream tells what has changed.
import { setUpCheckpoints, showBars, showCheckpoints } from "./checkpoints.js";
import { setUpControl } from "./control.js";
import { byId, duration, make, setClass, setText } from "./dom.js";
import { showGraph, watchFrames } from "./graph.js";
import { openHistory, setUpHistory } from "./history.js";
import { showFailovers, showHead, showNotice, showRates, showSettings, showShown, showTiles, showWaits } from "./parts.js";
import { setUpSubtasks, showSubtasks } from "./subtasks.js";

const LOST_AFTER_MS = 4000; // without a message the connection is taken for lost
const TICK_MS = 500;

let told = null; // all that was told, the newest of each part
let heardAt = 0; // when the newest message came, by this machine's clock

const PARTS = [showHead, showTiles, showWaits, showRates, showGraph, showSubtasks, showShown, showCheckpoints, showBars, showFailovers, showSettings];

function show() {
  if (!told || !told.view || document.hidden) return;
  const begun = performance.now();
  document.body.classList.remove("blank");
  for (const part of PARTS) part(told.view);
  performance.measure("penstock-show", { start: begun });
}

// What is not told is as before; of rows and bars each for itself.
function merged(before, changed) {
  if (!before || !changed) return changed;
  const view = { ...before, ...changed };
  view.rows = { ...before.rows, ...changed.rows };
  const bars = { ...before.bars, ...changed.bars };
  view.bars = Object.fromEntries(view.checkpoints.filter((c) => bars[c.checkpoint_id]).map((c) => [c.checkpoint_id, bars[c.checkpoint_id]]));
  return view;
}

function heard(message, first) {
  told = { ...message, view: merged(first ? null : told.view, message.view) };
  heardAt = Date.now();
  show();
  tick();
}

function tick() {
  const silent = Date.now() - heardAt;
  const lost = heardAt > 0 && silent > LOST_AFTER_MS;
  const view = told && told.view;
  if (told) showNotice(told, heardAt, lost);
  const connection = byId("connection");
  setClass(connection, lost ? "lost" : "");
  if (lost) setText(connection, "connection lost");
  else if (view && told.trouble) setText(connection, `not live: from ${duration(told.now_ms - told.looked_ms)} ago`);
  else if (view) setText(connection, view.ended ? "the job has ended" : `live, told ${view.age_s < 3 ? "just now" : `${duration(view.age_s * 1000)} ago`}`);
  else setText(connection, heardAt ? "connected" : "connecting …");
}

function explain(words) {
  for (const element of document.querySelectorAll("[data-hint]")) element.title = words.hints[element.dataset.hint] || "";
  for (const [word, hint] of Object.entries(words.hints)) byId("words").append(make("dt", "", word), make("dd", "", hint));
  byId("all-jobs").hidden = !words.list;
  setUpCheckpoints(words.steps, show);
}

let stream = null;
let heardOfStream = 0;

function listen() {
  if (stream) stream.close();
  heardOfStream = Date.now();
  stream = new EventSource("api/stream");
  let first = true;
  stream.onopen = () => { first = true; };
  stream.onmessage = (message) => {
    heardOfStream = Date.now();
    heard(JSON.parse(message.data), first);
    first = false;
  };
}

const read = (id) => JSON.parse(byId(id).textContent);
const can = read("can-told");
explain(read("words-told"));
setUpSubtasks(openHistory, can.log);
setUpHistory();
setUpControl(can.control, () => (told.view ? told.view.job : can.job));
document.addEventListener("visibilitychange", show);
heard(read("first-told"), true);
listen();
if (can.log) watchFrames(() => told.view, "api/frames", () => told.view && showGraph(told.view));
// A browser goes on trying by itself, but not after every kind of failure: a silent stream is opened anew.
setInterval(() => {
  tick();
  if (Date.now() - heardOfStream > LOST_AFTER_MS) listen();
}, TICK_MS);
