// Small helpers of all pages. Text goes into a page as text, never as markup.

export const byId = (id) => document.getElementById(id);

export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

export function setClass(element, name) {
  if (element.className !== name) element.className = name;
}

export function make(tag, className, text) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  if (text !== undefined) element.textContent = text;
  return element;
}

// As many children as there are items, each brought up to date in place: nothing flickers, selections stay.
export function fill(parent, items, create, update) {
  while (parent.children.length > items.length) parent.lastElementChild.remove();
  while (parent.children.length < items.length) parent.append(create());
  items.forEach((item, index) => update(parent.children[index], item));
}

export function cells(...kinds) {
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

export const slug = (text) => text.replaceAll(" ", "-");
export const number = (n) => n.toLocaleString("en-US", { maximumFractionDigits: n > 0 && n < 10 ? 1 : 0 });
export const compact = (n) => (n < 100000 ? number(n) : n.toLocaleString("en-US", { notation: "compact", maximumFractionDigits: 1 }));
export const clock = (ms) => new Date(ms).toLocaleTimeString("en-GB");

export function duration(ms) {
  if (ms < 0) return "–";
  if (ms < 10) return `${number(ms)} ms`;
  if (ms < 1000) return `${Math.round(ms)} ms`;
  if (ms < 120000) return `${(ms / 1000).toFixed(ms < 10000 ? 1 : 0)} s`;
  return ms < 7200000 ? `${Math.round(ms / 60000)} min` : `${Math.round(ms / 3600000)} h`;
}

export function size(bytes) {
  if (bytes < 10000) return `${number(bytes)} B`;
  return bytes < 1e7 ? `${number(Math.round(bytes / 1000))} kB` : `${number(Math.round(bytes / 1e6))} MB`;
}
