// The parts of a job's page that show numbers and sentences as they are told.
import { byId, cells, clock, duration, fill, make, number, setClass, setText, size } from "./dom.js";

export function showHead(view) {
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

export function showNotice(told, heardAt, lost) {
  const [view, trouble] = [told.view, told.trouble];
  const [text, tone] = notice(told, heardAt, lost);
  setText(byId("notice"), text);
  setClass(byId("notice"), tone);
  byId("notice").hidden = !text;
  setClass(document.querySelector("main"), lost || trouble || (view && view.state === "gone") ? "stale" : "");
}

function notice({ view, trouble, now_ms }, heardAt, lost) {
  if (lost) return [`No connection to the dashboard. What you see is from ${clock(heardAt)}; trying again.`, "bad"];
  if (trouble) return [`The job cannot be looked at: ${trouble}. Trying again.`, "bad"];
  if (!view) return ["No status of this job has come yet: has its coordinator started?", "warn"];
  if (view.state === "gone") return [`Gone since ${clock(now_ms - view.age_s * 1000)} (${duration(view.age_s * 1000)} ago). What you see is from then.`, "bad"];
  if (view.ended) return [`The job has ended: ${view.state}, ${view.cause || "no cause told"}`, view.state === "failed" ? "bad" : "calm"];
  if (view.cause) return [view.cause, "warn"];
  return ["", ""];
}

export function showTiles(view) {
  const of = (name, text, more) => {
    setText(byId(`tile-${name}`), text);
    setText(byId(`tile-${name}-more`), more);
  };
  const [, sent, handled] = view.rates;
  const finished = view.operators.reduce((sum, operator) => sum + operator.totals.finished, 0);
  of("subtasks", `${view.running} of ${view.subtasks}`, finished ? `${finished} finished` : `epoch ${view.epoch}`);
  of(
    "checkpoint",
    view.last_completed < 0 ? "none yet" : `${view.last_completed}`,
    `${view.last_took_ms < 0 ? "" : `took ${duration(view.last_took_ms)}, `}${view.aborted} aborted`,
  );
  of("sent", `${number(sent)}/s`, `${number(view.held)} held (${size(view.held_bytes)})`);
  of("handled", `${number(handled)}/s`, `${number(view.unhandled)} unhandled`);
  of("latency", view.latency_ms < 0 ? "–" : duration(view.latency_ms), view.latency_ms < 0 ? "no event handled lately" : "on average, last 10 s");
  of("failovers", `${view.failovers_region + view.failovers_global}`, `${view.failovers_region} region, ${view.failovers_global} global`);
}

export function showWaits(view) {
  const waits = view.waits.length ? view.waits : [view.ended ? "nothing: the job has ended" : "nothing: every subtask is there, and no checkpoint is late"];
  fill(byId("waits"), waits, () => make("li"), (item, text) => {
    setText(item, text);
    setClass(item, view.waits.length ? "wanted" : "nothing");
  });
}

export function showRates(view) {
  const top = Math.max(1, ...view.points.map(([, sent, handled]) => Math.max(sent, handled)));
  const whole = Math.max(30000, view.points.length ? view.at_ms - view.points[0][0] : 0);
  const line = (pick) =>
    view.points
      .map((point) => {
        const x = 360 - ((view.at_ms - point[0]) / whole) * 360;
        return `${x.toFixed(1)},${(62 - (point[pick] / top) * 60).toFixed(1)}`;
      })
      .join(" ");
  byId("line-sent").setAttribute("points", line(1));
  byId("line-handled").setAttribute("points", line(2));
  setText(byId("rates-top"), number(top));
  setText(byId("rates-span"), `the last ${duration(whole)}`);
}

export function showShown(view) {
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

const opened = new Set(); // failovers whose places are shown: rows move down when the next one comes

export function showFailovers(view) {
  const create = () => {
    const row = cells("", "", "number", "", "")();
    const whole = make("details");
    whole.append(make("summary"), make("pre"));
    whole.addEventListener("toggle", () => (whole.open ? opened.add(row.dataset.key) : opened.delete(row.dataset.key)));
    row.children[4].append(make("span"), whole);
    return row;
  };
  fill(document.querySelector("#failovers tbody"), view.failovers, create, (row, f) => {
    const named = f.subtasks.slice(0, 4).join(", ");
    const whom = f.count > 4 ? `${named} and ${number(f.count - 4)} more` : named;
    const texts = [clock(f.at_ms), f.kind, f.took_ms < 0 ? "not over yet" : duration(f.took_ms), whom];
    texts.forEach((text, index) => setText(row.children[index], text));
    setClass(row.children[2], f.took_ms < 0 ? "number absent" : "number");
    const [line, whole] = row.children[4].children;
    const [first, ...places] = f.cause.split("\n");
    row.dataset.key = `${f.at_ms} ${f.subtasks[0]}`;
    if (whole.open !== opened.has(row.dataset.key)) whole.open = !whole.open;
    line.hidden = places.length > 0;
    whole.hidden = !places.length;
    setText(line, first);
    setText(whole.firstChild, first);
    setText(whole.lastChild, places.join("\n"));
  });
  const count = view.failovers_region + view.failovers_global;
  setText(byId("failovers-none"), count ? `${number(count)} since this coordinator started, of which it tells no more` : "none since this coordinator started");
  byId("failovers-none").hidden = view.failovers.length > 0;
}

export function showSettings(view) {
  fill(byId("settings"), view.settings, () => {
    const row = make("div");
    row.append(make("dt"), make("dd"));
    return row;
  }, (row, [name, value]) => {
    setText(row.children[0], name);
    setText(row.children[1], value);
  });
  byId("settings-none").hidden = view.settings.length > 0;
}
