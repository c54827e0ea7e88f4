// Shows what the server tells, each half second. Text goes into the page as text, never as markup.
"use strict";

const LOST_AFTER_MS = 4000; // without a message the connection is taken for lost
const byId = (id) => document.getElementById(id);

let told = null; // the newest message
let heardAt = 0; // when it came, by this machine's clock
let pinned = null; // id of the checkpoint whose bars somebody asked for
let steps = {};

// ---- small helpers

function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

function setClass(element, name) {
  if (element.className !== name) element.className = name;
}

function make(tag, className, text) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  if (text !== undefined) element.textContent = text;
  return element;
}

// As many children as there are items, each brought up to date in place: nothing flickers, selections stay.
function fill(parent, items, create, update) {
  while (parent.children.length > items.length) parent.lastElementChild.remove();
  while (parent.children.length < items.length) parent.append(create());
  items.forEach((item, index) => update(parent.children[index], item));
}

const slug = (text) => text.replaceAll(" ", "-");
const number = (n) => n.toLocaleString("en-US", { maximumFractionDigits: n > 0 && n < 10 ? 1 : 0 });
const clock = (ms) => new Date(ms).toLocaleTimeString("en-GB");

function duration(ms) {
  if (ms < 0) return "–";
  if (ms < 1000) return `${Math.round(ms)} ms`;
  if (ms < 120000) return `${(ms / 1000).toFixed(ms < 10000 ? 1 : 0)} s`;
  return ms < 7200000 ? `${Math.round(ms / 60000)} min` : `${Math.round(ms / 3600000)} h`;
}

function size(bytes) {
  if (bytes < 10000) return `${number(bytes)} B`;
  return bytes < 1e7 ? `${number(Math.round(bytes / 1000))} kB` : `${number(Math.round(bytes / 1e6))} MB`;
}

// ---- parts of the page

function showHead(view) {
  document.title = `${view.job}: ${view.state}`;
  setText(byId("job"), view.job);
  setText(byId("state"), view.state);
  setClass(byId("state"), `badge ${view.state}`);
  setText(byId("says"), view.says);
  setText(
    byId("about"),
    `Epoch ${view.epoch}, run ${view.run || "–"}, coordinator ${view.instance}. ` +
      Object.entries(view.dropped).map(([why, count]) => `${number(count)} records did not count: ${why}. `).join(""),
  );
}

function showNotice(view, trouble, lost) {
  const [text, tone] = notice(view, trouble, lost);
  setText(byId("notice"), text);
  setClass(byId("notice"), tone);
  byId("notice").hidden = !text;
  setClass(document.querySelector("main"), lost || trouble || (view && view.state === "gone") ? "stale" : "");
}

function notice(view, trouble, lost) {
  if (lost) return [`No connection to the dashboard. What you see is from ${clock(heardAt)}; trying again.`, "bad"];
  if (trouble) return [`The job cannot be looked at: ${trouble}. Trying again.`, "bad"];
  if (!view) return ["No status of this job has come yet: has its coordinator started?", "warn"];
  if (view.state === "gone") return [`Gone since ${clock(told.now_ms - view.age_s * 1000)} (${duration(view.age_s * 1000)} ago). What you see is from then.`, "bad"];
  if (view.ended) return [`The job has ended: ${view.state}, ${view.cause || "no cause told"}`, view.state === "failed" ? "bad" : "calm"];
  if (view.cause) return [view.cause, "warn"];
  return ["", ""];
}

function showTiles(view) {
  const of = (name, text, more) => {
    setText(byId(`tile-${name}`), text);
    setText(byId(`tile-${name}-more`), more);
  };
  const finished = view.operators.reduce((sum, operator) => sum + operator.totals.finished, 0);
  of("subtasks", `${view.running} of ${view.subtasks}`, finished ? `${finished} finished` : `epoch ${view.epoch}`);
  of(
    "checkpoint",
    view.last_completed < 0 ? "none yet" : `${view.last_completed}`,
    `${view.last_took_ms < 0 ? "" : `took ${duration(view.last_took_ms)}, `}${view.aborted} aborted`,
  );
  of("sent", `${number(view.rates.sent)}/s`, `${number(view.held)} held (${size(view.held_bytes)})`);
  of("handled", `${number(view.rates.handled)}/s`, `${number(view.unhandled)} unhandled`);
  of("failovers", `${view.failovers_region + view.failovers_global}`, `${view.failovers_region} region, ${view.failovers_global} global`);
}

function showWaits(view) {
  const waits = view.waits.length ? view.waits : [view.ended ? "nothing: the job has ended" : "nothing: every subtask is there, and no checkpoint is late"];
  fill(byId("waits"), waits, () => make("li"), (item, text) => {
    setText(item, text);
    setClass(item, view.waits.length ? "wanted" : "nothing");
  });
}

function showRates(view) {
  const top = Math.max(1, ...view.points.map((point) => Math.max(point.sent, point.handled)));
  const whole = Math.max(30000, view.points.length ? view.at_ms - view.points[0].at_ms : 0);
  const line = (pick) =>
    view.points
      .map((point) => {
        const x = 360 - ((view.at_ms - point.at_ms) / whole) * 360;
        return `${x.toFixed(1)},${(62 - (pick(point) / top) * 60).toFixed(1)}`;
      })
      .join(" ");
  byId("line-sent").setAttribute("points", line((point) => point.sent));
  byId("line-handled").setAttribute("points", line((point) => point.handled));
  setText(byId("rates-top"), number(top));
  setText(byId("rates-span"), `the last ${duration(whole)}`);
}

function cells(...kinds) {
  return () => {
    const row = make("tr");
    kinds.forEach((kind, index) => {
      const cell = make(index === 0 ? "th" : "td", kind);
      if (index === 0) cell.scope = "row";
      row.append(cell);
    });
    return row;
  };
}

function showSubtasks(view) {
  const rows = view.operators.flatMap((operator) => operator.subtasks.map((subtask) => [operator.operator, subtask]));
  const create = cells("", "", "number", "number", "", "number", "number", "number", "number", "number", "number", "number", "");
  fill(document.querySelector("#subtasks tbody"), rows, create, (row, [operator, s]) => {
    row.dataset.subtask = `${operator}/${s.subtask}`;
    const texts = [
      row.dataset.subtask, s.phase, s.since_s < 0 ? "–" : duration(Math.floor(s.since_s) * 1000 || s.since_s * 1000),
      s.attempt < 0 ? "–" : `${s.attempt}`, s.phase === "running" ? s.gateway : "–",
      ...[s.sent, s.handled, s.unhandled, s.held, s.received, s.failures].map(number),
      s.phase === "running" ? `${s.silent_s.toFixed(1)} s` : "–", s.doing,
    ];
    texts.forEach((text, index) => setText(row.children[index], text));
    setClass(row.children[1], s.phase);
    setClass(row.children[4], s.phase !== "running" ? "" : s.gateway === "open" ? "open" : "closed");
    row.children[12].title = s.doing;
  });
  const more = view.operators.filter((operator) => operator.left_out > 0);
  setText(byId("subtasks-more"), more.map((o) => `${number(o.left_out)} more of ${o.operator}: ${number(o.totals.running)} running, ${number(o.totals.absent + o.totals.waiting)} missing of ${number(o.parallelism)} in all.`).join(" "));
}

function showShown(view) {
  const rows = view.operators.flatMap((operator) => Object.entries(operator.shown).map(([name, value]) => [operator.operator, name, value]));
  byId("shown").hidden = !rows.length;
  const create = () => {
    const row = make("p", "fact");
    row.append(make("span", "small"), make("span", "value"));
    return row;
  };
  fill(byId("shown").lastElementChild, rows, create, (row, [operator, name, value]) => {
    row.dataset.shown = `${operator}/${name}`;
    setText(row.children[0], `${operator}: ${name}`);
    setText(row.children[1], value);
  });
}

function showCheckpoints(view) {
  const shown = chosen(view);
  const create = () => {
    const row = cells("", "", "", "number", "number", "number")();
    const button = make("button", "show");
    button.type = "button";
    button.addEventListener("click", () => {
      pinned = pinned === Number(button.dataset.id) ? null : Number(button.dataset.id);
      if (told && told.view) show(told.view);
    });
    row.firstChild.append(button, make("span"));
    return row;
  };
  fill(document.querySelector("#checkpoints tbody"), view.checkpoints, create, (row, c) => {
    row.dataset.checkpoint = `${c.checkpoint_id}`;
    const [button, label] = row.firstChild.children;
    button.dataset.id = `${c.checkpoint_id}`;
    button.hidden = !c.bars.length;
    button.setAttribute("aria-pressed", `${shown !== undefined && shown.checkpoint_id === c.checkpoint_id}`);
    button.title = "show where its time went";
    setText(button, `${c.checkpoint_id}`);
    setText(label, (c.bars.length ? "" : `${c.checkpoint_id}`) + (c.savepoint ? " savepoint" : ""));
    const texts = [clock(c.triggered_at_ms), c.outcome, duration(c.took_ms), `${c.acked}/${c.required}`, size(c.state_bytes)];
    texts.forEach((text, index) => setText(row.children[index + 1], text));
    setClass(row.children[2], slug(c.outcome));
    row.children[2].title = c.reason;
  });
}

function chosen(view) {
  const byNumber = (id) => view.checkpoints.find((c) => c.checkpoint_id === id && c.bars.length);
  return (pinned !== null && byNumber(pinned)) || byNumber(view.focus);
}

function showBars(view) {
  const c = chosen(view);
  if (!c) {
    setText(byId("bars-says"), view.last_completed < 0 ? "No checkpoint has been taken yet." : "Of no checkpoint the steps have been told yet.");
    fill(byId("bars"), [], null, null);
    return;
  }
  const chosenBy = pinned === c.checkpoint_id ? " (chosen; click its number again to follow the newest)" : "";
  const why = c.reason ? `: ${c.reason}` : "";
  setText(byId("bars-says"), `${c.savepoint ? "Savepoint" : "Checkpoint"} ${c.checkpoint_id}, ${c.outcome} ${c.outcome === "under way" ? "for" : "after"} ${duration(c.took_ms)}, ${c.acked} of ${c.required} subtasks safe${why}${chosenBy}`);
  const whole = Math.max(1, c.took_ms);
  const create = () => {
    const row = make("div", "bar");
    const track = make("span", "track");
    track.setAttribute("role", "img");
    row.append(make("span", "who"), track, make("span", "says small"));
    return row;
  };
  fill(byId("bars"), c.bars, create, (row, bar) => {
    setText(row.children[0], bar.who);
    setText(row.children[2], bar.says);
    row.children[1].setAttribute("aria-label", `${bar.who}: ${bar.says}`);
    fill(row.children[1], bar.segments, () => make("span"), (part, segment) => {
      setClass(part, segment.kind + (segment.open ? " growing" : ""));
      part.style.left = `${(100 * segment.begin_ms) / whole}%`;
      part.style.width = `${(100 * (segment.end_ms - segment.begin_ms)) / whole}%`;
      part.title = `${steps[segment.kind] || segment.kind}: ${duration(segment.begin_ms)} to ${duration(segment.end_ms)}`;
    });
  });
}

function showFailovers(view) {
  fill(document.querySelector("#failovers tbody"), view.failovers, cells("", "", "number", "", ""), (row, f) => {
    const named = f.subtasks.slice(0, 4).join(", ");
    const whom = f.count > 4 ? `${named} and ${number(f.count - 4)} more` : named;
    const texts = [clock(f.at_ms), f.kind, f.took_ms < 0 ? "not over yet" : duration(f.took_ms), whom, f.cause.split("\n")[0]];
    texts.forEach((text, index) => setText(row.children[index], text));
    row.children[4].title = f.cause;
    setClass(row.children[2], f.took_ms < 0 ? "number absent" : "number");
  });
  const count = view.failovers_region + view.failovers_global;
  setText(byId("failovers-none"), count ? `${number(count)} since this coordinator started, of which it tells no more` : "none since this coordinator started");
  byId("failovers-none").hidden = view.failovers.length > 0;
}

function show(view) {
  showHead(view);
  showTiles(view);
  showWaits(view);
  showRates(view);
  showSubtasks(view);
  showShown(view);
  showCheckpoints(view);
  showBars(view);
  showFailovers(view);
}

// ---- what the server tells

function heard(message) {
  told = message;
  heardAt = Date.now();
  if (told.view) show(told.view);
  tick();
}

function tick() {
  const silent = Date.now() - heardAt;
  const lost = heardAt > 0 && silent > LOST_AFTER_MS;
  const view = told && told.view;
  if (told) showNotice(view, told.trouble, lost);
  const connection = byId("connection");
  setClass(connection, lost ? "lost" : "");
  if (lost) setText(connection, "connection lost");
  else if (view && told.trouble) setText(connection, `not live: from ${duration(told.now_ms - told.looked_ms)} ago`);
  else if (view) setText(connection, view.ended ? "the job has ended" : `live, told ${view.age_s < 3 ? "just now" : `${duration(view.age_s * 1000)} ago`}`);
  else setText(connection, heardAt ? "connected" : "connecting …");
}

function explain(words) {
  steps = words.steps;
  for (const element of document.querySelectorAll("[data-hint]")) element.title = words.hints[element.dataset.hint] || "";
  for (const [word, hint] of Object.entries(words.hints)) byId("words").append(make("dt", "", word), make("dd", "", hint));
  for (const kind of ["cut", "snapshot", "upload", "commit"]) byId("legend").append(make("span", `key ${kind}`), words.steps[kind]);
}

let stream = null;

function listen() {
  if (stream) stream.close();
  heardOfStream = Date.now();
  stream = new EventSource("/api/stream");
  stream.onmessage = (message) => {
    heardOfStream = Date.now();
    heard(JSON.parse(message.data));
  };
}

// A browser goes on trying by itself, but not after every kind of failure: a silent stream is opened anew.
let heardOfStream = 0;
setInterval(() => {
  tick();
  if (Date.now() - heardOfStream > LOST_AFTER_MS) listen();
}, 500);
explain(JSON.parse(byId("words-told").textContent));
heard(JSON.parse(byId("first-told").textContent));
listen();
