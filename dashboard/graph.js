// The operators and what flows between them: data edges from left to right, events between each and its coordinator.
import { byId, duration, number } from "./dom.js";

const SVG = "http://www.w3.org/2000/svg";
const BOX = { width: 210, height: 84, across: 150, down: 34 };
const FRAMES_EVERY_MS = 3000;

let frames = null; // of each edge: how many records its topic has had, and when that was
let rates = {};

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

export function showGraph(view) {
  const svg = byId("graph");
  const column = columns(view);
  const rows = {};
  const at = {};
  for (const operator of view.operators) {
    const x = column[operator.operator];
    const y = (rows[x] = (rows[x] ?? -1) + 1);
    at[operator.operator] = { x: 2 + x * (BOX.width + BOX.across), y: 2 + y * (BOX.height + BOX.down) };
  }
  const width = Math.max(...Object.values(at).map((p) => p.x)) + BOX.width + 2;
  const height = Math.max(...Object.values(at).map((p) => p.y)) + BOX.height + 2;
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.style.width = `${width}px`;
  svg.replaceChildren();
  for (const edge of view.edges) {
    const [from, to] = [at[edge.sender], at[edge.receiver]];
    if (!from || !to) continue;
    const [x1, y1, x2, y2] = [from.x + BOX.width, from.y + BOX.height / 2, to.x, to.y + BOX.height / 2];
    const middle = (x1 + x2) / 2;
    draw("path", { d: `M${x1} ${y1} C${middle} ${y1} ${middle} ${y2} ${x2 - 6} ${y2}`, class: "edge" }, svg);
    draw("path", { d: `M${x2 - 8} ${y2 - 5} L${x2} ${y2} L${x2 - 8} ${y2 + 5} z`, class: "tip" }, svg);
    const rate = rates[`${edge.sender}/${edge.receiver}`];
    draw("text", { x: middle, y: (y1 + y2) / 2 - 8, class: "on-edge" }, svg, edge.partitioning);
    draw("text", { x: middle, y: (y1 + y2) / 2 + 16, class: "on-edge" }, svg, rate === undefined ? "" : `${number(rate)} frames/s`);
  }
  for (const operator of view.operators) drawOperator(svg, operator, at[operator.operator]);
}

function drawOperator(svg, operator, { x, y }) {
  const totals = operator.totals;
  const whole = totals.running + totals.finished === operator.parallelism;
  const group = draw("g", { class: whole ? "operator" : "operator missing", "data-operator": operator.operator }, svg);
  draw("rect", { x, y, width: BOX.width, height: BOX.height, rx: 8 }, group);
  draw("title", {}, group, operator.operator);
  draw("text", { x: x + 12, y: y + 22, class: "name" }, group, `${short(operator.operator, 16)} × ${operator.parallelism}`);
  const missing = totals.absent + totals.waiting;
  const state = missing ? `${number(missing)} missing` : totals.finished === operator.parallelism ? "finished" : `${number(totals.running)} running`;
  draw("text", { x: x + BOX.width - 12, y: y + 22, class: "state" }, group, state);
  const [, sent, handled, received] = operator.rates;
  draw("text", { x: x + 12, y: y + 42, class: "rate" }, group, `events to it ${number(sent)}/s, handled ${number(handled)}/s`);
  draw("text", { x: x + 12, y: y + 58, class: "rate" }, group, `from it ${number(received)}/s`);
  const latency = operator.latency_ms < 0 ? "no event handled lately" : `sent to handled: ${duration(operator.latency_ms)}`;
  draw("text", { x: x + 12, y: y + 74, class: "rate" }, group, latency);
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
