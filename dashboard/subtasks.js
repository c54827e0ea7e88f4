// The table of subtasks: of thousands, only the rows that are in sight are in the page.
import { byId, cells, duration, fill, make, number, setClass, setText } from "./dom.js";

// As `updates.py` orders a row.
const ROW = ["phase", "since", "attempt", "gateway", "sent", "handled", "held", "received", "failures", "silent", "host", "doing"];
const ROW_PX = 30;
const SPARE = 8; // rows above and below those in sight
const TABLE_PX = 480;

let rows = []; // all that match, in order
let shownView = null;
let openHistory = () => {};

export function subtaskOf(view, name) {
  const told = view.rows[name];
  return told && Object.fromEntries(ROW.map((key, index) => [key, told[index]]));
}

const isWanted = {
  all: () => true,
  trouble: (s) => s.phase === "absent" || s.phase === "waiting" || s.failures > 0 || s.gateway !== "open" || s.silent > 0,
};

export function showSubtasks(view) {
  shownView = view;
  const wanted = isWanted[byId("subtasks-which").value];
  const named = byId("subtasks-named").value.trim().toLowerCase();
  rows = [];
  let all = 0;
  for (const operator of view.operators) {
    for (const index of operator.indexes ?? Array(operator.parallelism).keys()) {
      const name = `${operator.operator}/${index}`;
      const told = subtaskOf(view, name);
      if (!told) continue;
      all += 1;
      if (wanted(told) && (!named || `${name} ${told.host} ${told.doing}`.toLowerCase().includes(named))) rows.push({ name, operator: operator.operator, index, ...told });
    }
  }
  const more = view.operators.filter((operator) => operator.left_out > 0);
  const told = rows.length === all ? [] : [`${number(rows.length)} of ${number(all)} shown.`];
  setText(byId("subtasks-more"), [...told, ...more.map((o) => `${number(o.left_out)} more of ${o.operator}: ${number(o.totals.running)} running, ${number(o.totals.absent + o.totals.waiting)} missing of ${number(o.parallelism)} in all.`)].join(" "));
  draw();
}

function draw() {
  const scroll = byId("subtasks-scroll");
  const few = rows.length * ROW_PX <= TABLE_PX;
  setClass(scroll, few ? "scroll" : "scroll many");
  const first = few ? 0 : Math.max(0, Math.min(rows.length, Math.floor(scroll.scrollTop / ROW_PX)) - SPARE);
  const last = few ? rows.length : Math.min(rows.length, first + Math.ceil(TABLE_PX / ROW_PX) + 2 * SPARE);
  const body = document.querySelector("#subtasks tbody");
  byId("subtasks").setAttribute("aria-rowcount", `${rows.length + 1}`);
  byId("rows-above").style.height = `${first * ROW_PX}px`;
  byId("rows-below").style.height = `${(rows.length - last) * ROW_PX}px`;
  fill(body, rows.slice(first, last), create, update);
}

function create() {
  const row = cells("", "", "number", "number", "", "number", "number", "number", "number", "number", "number", "number", "")();
  const button = make("button", "show");
  button.type = "button";
  button.title = "its history from the log";
  button.addEventListener("click", () => openHistory(row.dataset.operator, Number(row.dataset.index)));
  row.firstChild.append(button);
  return row;
}

function update(row, s) {
  row.dataset.subtask = s.name;
  row.dataset.operator = s.operator;
  row.dataset.index = `${s.index}`;
  const runs = s.phase === "running";
  setText(row.firstChild.firstChild, s.name);
  const texts = [
    s.phase, s.since ? duration(Math.max(0, Math.round((shownView.at_ms + 1000 * shownView.age_s) / 1000 - s.since)) * 1000) : "–",
    s.attempt < 0 ? "–" : `${s.attempt}`, runs ? s.gateway : "–",
    ...[s.sent, s.handled, Math.max(0, s.sent - s.handled), s.held, s.received, s.failures].map(number),
    !runs ? "–" : s.silent ? `${s.silent} s` : "no", s.doing,
  ];
  texts.forEach((text, index) => setText(row.children[index + 1], text));
  setClass(row.children[1], s.phase);
  setClass(row.children[4], !runs ? "" : s.gateway === "open" ? "open" : "closed");
  row.children[12].title = s.host ? `${s.doing} (on ${s.host})` : s.doing;
}

export function setUpSubtasks(open, canOpen) {
  openHistory = canOpen ? open : () => {};
  document.body.classList.toggle("no-history", !canOpen);
  const again = () => shownView && showSubtasks(shownView);
  byId("subtasks-which").addEventListener("change", again);
  byId("subtasks-named").addEventListener("input", again);
  byId("subtasks-scroll").addEventListener("scroll", () => requestAnimationFrame(draw), { passive: true });
}
