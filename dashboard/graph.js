// The operators: each below its coordinator, with the events between the two, and data edges from left to right.
import { byId, compact, duration, number } from "./dom.js";

const SVG = "http://www.w3.org/2000/svg";
const BOX = { width: 216, height: 70, across: 148, down: 30 };
const COORDINATOR = { height: 28, gap: 40 };
const FRAMES_EVERY_MS = 3000;

let frames = null; // of each edge: how many records its topic has had, and when that was
let rates = {};
let drawn = "";

function draw(tag, attributes, parent, text) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  if (text !== undefined) element.textContent = text;
  parent.append(element);
  return element;
}

// Of each operator how many edges lie before it; an edge that would lead back (a forged status) counts for nothing.
function columns(view) {
  const column = {};
  view.operators.forEach((operator) => {
    const before = view.edges.filter((edge) => edge.receiver === operator.operator).map((edge) => column[edge.sender]);
    column[operator.operator] = Math.max(-1, ...before.filter((at) => at !== undefined)) + 1;
  });
  return column;
}

const short = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);
const ABOVE = COORDINATOR.height + COORDINATOR.gap;
const talks = (operator) => operator.totals.sent + operator.totals.received > 0;

// Where each operator's box is; a row leaves room for coordinators where one of it has events to show.
function placed(view, column) {
  const filled = {};
  const rows = [];
  for (const operator of view.operators) {
    const x = column[operator.operator];
    const y = (filled[x] = (filled[x] ?? -1) + 1);
    (rows[y] ??= []).push({ operator, x });
  }
  const at = {};
  let top = 2;
  for (const row of rows) {
    top += row.some(({ operator }) => talks(operator)) ? ABOVE : 0;
    for (const { operator, x } of row) at[operator.operator] = { x: 2 + x * (BOX.width + BOX.across), y: top };
    top += BOX.height + BOX.down;
  }
  return at;
}

// Nothing is drawn again that looks as it did: what is marked with the mouse, or hovered over, stays.
export function showGraph(view) {
  const looks = JSON.stringify([view.edges, rates, view.operators.map((o) => [o.operator, o.parallelism, o.totals, o.rates.slice(1), o.latency_ms])]);
  if (looks === drawn) return;
  drawn = looks;
  const svg = byId("graph");
  const column = columns(view);
  const at = placed(view, column);
  const width = Math.max(0, ...Object.values(at).map((p) => p.x)) + BOX.width + 2;
  const height = Math.max(0, ...Object.values(at).map((p) => p.y)) + BOX.height + 2;
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.style.width = `${width}px`;
  svg.replaceChildren();
  for (const edge of view.edges) if (at[edge.sender] && at[edge.receiver]) drawEdge(svg, edge, at[edge.sender], at[edge.receiver]);
  for (const operator of view.operators) {
    if (talks(operator)) drawCoordinator(svg, operator, at[operator.operator]);
    drawOperator(svg, operator, at[operator.operator]);
  }
}

function drawEdge(svg, edge, from, to) {
  const [x1, y1, x2, y2] = [from.x + BOX.width, from.y + BOX.height / 2, to.x, to.y + BOX.height / 2];
  const middle = (x1 + x2) / 2;
  const rate = rates[`${edge.sender}/${edge.receiver}`];
  draw("path", { d: `M${x1} ${y1} C${middle} ${y1} ${middle} ${y2} ${x2 - 6} ${y2}`, class: rate > 0 ? "edge flows" : "edge" }, svg);
  draw("path", { d: `M${x2 - 8} ${y2 - 5} L${x2} ${y2} L${x2 - 8} ${y2 + 5} z`, class: "tip" }, svg);
  draw("text", { x: middle, y: (y1 + y2) / 2 - 8, class: "on-edge" }, svg, edge.partitioning);
  draw("text", { x: middle, y: (y1 + y2) / 2 + 17, class: "on-edge rate" }, svg, rate === undefined ? "" : `${compact(rate)} frames/s`);
}

function drawCoordinator(svg, operator, { x, y }) {
  const top = y - ABOVE;
  const group = draw("g", { class: "coordinator", "data-coordinator": operator.operator }, svg);
  draw("rect", { x, y: top, width: BOX.width, height: COORDINATOR.height, rx: COORDINATOR.height / 2 }, group);
  draw("text", { x: x + BOX.width / 2, y: top + 19, class: "middle" }, group, "coordinator");
  const [, sent, , received] = operator.rates;
  const [begin, end] = [top + COORDINATOR.height, y];
  const [down, up] = [x + 22, x + BOX.width - 22];
  draw("path", { d: `M${down} ${begin} V${end - 6}`, class: sent > 0 ? "edge flows" : "edge" }, group);
  draw("path", { d: `M${down - 5} ${end - 8} L${down} ${end} L${down + 5} ${end - 8} z`, class: "tip" }, group);
  draw("text", { x: down + 10, y: (begin + end) / 2 + 4, class: "rate" }, group, `${compact(sent)} events/s`);
  draw("path", { d: `M${up} ${end} V${begin + 6}`, class: received > 0 ? "edge flows" : "edge" }, group);
  draw("path", { d: `M${up - 5} ${begin + 8} L${up} ${begin} L${up + 5} ${begin + 8} z`, class: "tip" }, group);
  draw("text", { x: up - 10, y: (begin + end) / 2 + 4, class: "rate end" }, group, `${compact(received)}/s`);
}

function drawOperator(svg, operator, { x, y }) {
  const { running, finished, absent, waiting } = operator.totals;
  const missing = absent + waiting;
  const group = draw("g", { class: missing ? "operator missing" : "operator", "data-operator": operator.operator }, svg);
  draw("rect", { x, y, width: BOX.width, height: BOX.height, rx: 8 }, group);
  draw("title", {}, group, operator.operator);
  draw("text", { x: x + 12, y: y + 22, class: "name" }, group, `${short(operator.operator, 14)} × ${number(operator.parallelism)}`);
  const state = missing ? `${number(missing)} missing` : finished === operator.parallelism ? "finished" : `${number(running)} running`;
  draw("text", { x: x + BOX.width - 12, y: y + 22, class: "state" }, group, state);
  const whole = BOX.width - 24;
  draw("rect", { x: x + 12, y: y + 32, width: whole, height: 5, class: "share" }, group);
  draw("rect", { x: x + 12, y: y + 32, width: (whole * (running + finished)) / Math.max(1, operator.parallelism), height: 5, class: "share there" }, group);
  const [, , handled] = operator.rates;
  const says = !talks(operator) ? "" : operator.latency_ms < 0 ? "no event handled lately" : `${compact(handled)} handled/s, after ${duration(operator.latency_ms)}`;
  draw("text", { x: x + 12, y: y + 57, class: "rate" }, group, says);
}

// Where the server can read the logs: how fast the topics between operators grow.
export async function watchFrames(newest, url, redraw) {
  for (;;) {
    await new Promise((resolve) => setTimeout(resolve, FRAMES_EVERY_MS));
    const view = newest();
    if (!view || !view.edges.length || document.hidden) continue;
    try {
      const answer = await fetch(url, { signal: AbortSignal.timeout(20000) });
      if (!answer.ok) throw new Error(`${answer.status}`);
      const counts = await answer.json();
      const now = performance.now();
      rates = frames ? Object.fromEntries(Object.entries(counts).map(([edge, count]) => [edge, Math.max(0, (1000 * (count - (frames.counts[edge] ?? count))) / (now - frames.at))])) : {};
      frames = { counts, at: now };
    } catch {
      [frames, rates] = [null, {}]; // unknown is not none
    }
    redraw();
  }
}
