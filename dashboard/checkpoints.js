// The last checkpoints, and where one of them spends its time.
import { byId, cells, clock, duration, fill, make, number, setClass, setText, size, slug } from "./dom.js";

let pinned = null; // id of the checkpoint whose bars somebody asked for
let steps = {};
let again = () => {};

export function setUpCheckpoints(stepHints, showAgain) {
  [steps, again] = [stepHints, showAgain];
  for (const kind of ["cut", "snapshot", "upload", "commit"]) byId("legend").append(make("span", `key ${kind}`), steps[kind]);
}

const barsOf = (view, c) => view.bars[c.checkpoint_id];

export function showCheckpoints(view) {
  const shown = chosen(view);
  const create = () => {
    const row = cells("", "", "", "number", "number", "number")();
    const button = make("button", "show");
    button.type = "button";
    button.addEventListener("click", () => {
      pinned = pinned === Number(button.dataset.id) ? null : Number(button.dataset.id);
      again();
    });
    row.firstChild.append(button, make("span"));
    return row;
  };
  fill(document.querySelector("#checkpoints tbody"), view.checkpoints, create, (row, c) => {
    row.dataset.checkpoint = `${c.checkpoint_id}`;
    const [button, label] = row.firstChild.children;
    button.dataset.id = `${c.checkpoint_id}`;
    button.hidden = !barsOf(view, c);
    button.setAttribute("aria-pressed", `${shown !== undefined && shown.checkpoint_id === c.checkpoint_id}`);
    button.title = "show where its time went";
    setText(button, `${c.checkpoint_id}`);
    setText(label, (barsOf(view, c) ? "" : `${c.checkpoint_id}`) + (c.savepoint ? " savepoint" : ""));
    const texts = [clock(c.triggered_at_ms), c.outcome, duration(c.took_ms), `${c.acked}/${c.required}`, size(c.state_bytes)];
    texts.forEach((text, index) => setText(row.children[index + 1], text));
    setClass(row.children[2], slug(c.outcome));
    row.children[2].title = c.reason;
  });
}

function chosen(view) {
  const byNumber = (id) => view.checkpoints.find((c) => c.checkpoint_id === id && barsOf(view, c));
  return (pinned !== null && byNumber(pinned)) || byNumber(view.focus);
}

export function showBars(view) {
  const c = chosen(view);
  if (!c) {
    setText(byId("bars-says"), view.last_completed < 0 ? "No checkpoint has been taken yet." : "Of no checkpoint the steps have been told yet.");
    fill(byId("bars"), [], null, null);
    return;
  }
  const chosenBy = pinned === c.checkpoint_id ? " (chosen; click its number again to follow the newest)" : "";
  const some = c.bars_left_out > 0 ? `, of which the ${number(c.required - c.bars_left_out)} slowest are shown` : "";
  const why = c.reason ? `: ${c.reason}` : "";
  setText(byId("bars-says"), `${c.savepoint ? "Savepoint" : "Checkpoint"} ${c.checkpoint_id}, ${c.outcome} ${c.outcome === "under way" ? "for" : "after"} ${duration(c.took_ms)}, ${c.acked} of ${c.required} subtasks safe${some}${why}${chosenBy}`);
  const whole = Math.max(1, c.took_ms);
  const create = () => {
    const row = make("div", "bar");
    const track = make("span", "track");
    track.setAttribute("role", "img");
    row.append(make("span", "who"), track, make("span", "says small"));
    return row;
  };
  fill(byId("bars"), barsOf(view, c), create, (row, bar) => {
    setText(row.children[0], bar.who);
    setText(row.children[2], bar.says);
    row.children[1].setAttribute("aria-label", `${bar.who}: ${bar.says}`);
    fill(row.children[1], bar.segments, () => make("span"), (part, segment) => {
      const [kind, begin, end, open] = segment;
      setClass(part, kind + (open ? " growing" : ""));
      part.style.left = `${(100 * begin) / whole}%`;
      part.style.width = `${(100 * (end - begin)) / whole}%`;
      part.title = `${steps[kind] || kind}: ${duration(begin)} to ${duration(end)}`;
    });
  });
}

