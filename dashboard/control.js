// Asks the job for a savepoint, or to stop, where that is allowed. The token is kept in this page's memory alone.
import { byId, setText } from "./dom.js";

const SAYS = {
  savepoint: ["Take a savepoint", "A savepoint is taken and kept; the job goes on."],
  stop: ["Stop the job", "The run ends. Run again, the job goes on from its last completed checkpoint."],
  "stop-with-savepoint": ["Stop with a savepoint", "A savepoint is taken, and the run ends at it."],
};
const TIMEOUT_MS = 150000;
let token = "";
let action = "";

function open(wanted, job) {
  action = wanted;
  setText(byId("ask-title"), `${SAYS[action][0]}: ${job}`);
  setText(byId("ask-says"), SAYS[action][1]);
  setText(byId("ask-do"), SAYS[action][0]);
  setText(byId("ask-answer"), "");
  byId("ask-token").value = token;
  byId("ask-do").disabled = false;
  byId("ask").showModal();
}

async function ask() {
  token = byId("ask-token").value;
  byId("ask-do").disabled = true;
  setText(byId("ask-answer"), "asked; waiting for the job's answer …");
  let says = "";
  try {
    const answer = await fetch("api/control", {
      method: "POST",
      headers: { authorization: `Bearer ${token}`, "content-type": "application/json" },
      body: JSON.stringify({ action }),
      signal: AbortSignal.timeout(TIMEOUT_MS),
    });
    if (answer.ok) {
      const reply = await answer.json();
      says = `${reply.accepted ? "done" : "refused"}: ${reply.outcome}`;
    } else {
      says = await answer.text();
      if (answer.status === 401) token = "";
    }
  } catch (error) {
    says = `no answer (${error.message}): whether it was done is not known`;
  }
  setText(byId("ask-answer"), says);
  byId("ask-do").disabled = false;
}

export function setUpControl(allowed, job) {
  byId("control").hidden = !allowed;
  for (const button of document.querySelectorAll("#control button")) button.addEventListener("click", () => open(button.dataset.action, job()));
  document.querySelector("#ask form").addEventListener("submit", (event) => {
    event.preventDefault();
    if (!byId("ask-do").disabled) ask();
  });
  byId("ask-close").addEventListener("click", () => byId("ask").close());
}
