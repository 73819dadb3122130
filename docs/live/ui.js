// Small pieces that the live parts share.
import { bytesToLoad, load } from "./captioner.js";

export function h(tag, attributes = {}, ...children) {
  const svg = ["svg", "g", "path", "circle", "rect", "polygon", "line", "text", "title", "pattern",
    "defs"].includes(tag);
  const element = svg ? document.createElementNS("http://www.w3.org/2000/svg", tag)
    : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") element.addEventListener(name, value);
    else if (typeof value === "boolean") element.toggleAttribute(name, value);
    else element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

export const percent = (share) => {
  if (share > 0 && share < 0.001) return "<0.1 %";
  return `${(100 * share).toFixed(share < 0.1 && share > 0 ? 1 : 0)} %`;
};

export function choice(label, options, value, onChange) {
  const select = h("select", { change: () => onChange(select.value) },
    ...options.map(([key, text]) => h("option", { value: key, selected: key === value }, text)));
  return Object.assign(h("label", { class: "live-field" }, label, select), { select });
}

export function slider(label, { min, max, step, value, show = String }, onInput) {
  const output = h("span", {}, show(value));
  const input = h("input", { type: "range", min, max, step, value, input: () => {
    output.textContent = show(Number(input.value));
    onInput(Number(input.value));
  } });
  return Object.assign(h("label", { class: "live-field" }, h("span", {}, `${label} `, output), input),
    { input });
}

export const button = (text, click, attributes = {}) =>
  h("button", { type: "button", class: "live-button", click, ...attributes }, text);

// A line that screen readers speak when it changes.
export const status = () => h("p", { class: "live-status", role: "status" });

// Horizontal bars: [name, share, text] each; the chosen name is marked.
export function bars(rows, chosen) {
  const most = Math.max(...rows.map(([, share]) => share), 1e-9);
  return h("ul", { class: "live-bars" }, ...rows.map(([name, share, text = percent(share)]) =>
    h("li", name === chosen ? { class: "chosen" } : {}, h("span", {}, name),
      h("span", { class: "bar", "aria-hidden": "true", style: `--share: ${share / most}` }),
      h("span", {}, text))));
}

// A button that says how much it loads, a progress bar, and then `ready(captioner)`.
export async function loader(model, what, ready) {
  const box = h("div", { class: "live-load" });
  const bytes = await bytesToLoad(model);
  const begin = async () => {
    const place = box.parentElement;
    const isFocused = box.contains(document.activeElement);
    const bar = h("progress", { max: 1, value: 0, "aria-label": "Loading the captioner" });
    const line = status();
    line.textContent = "Loading the captioner …";
    box.replaceChildren(line, bar);
    try {
      const captioner = await load(model, (share) => {
        bar.value = share;
        if (share === 1) line.textContent = "Starting it …";
      });
      box.remove();
      await ready(captioner);
      const isLost = isFocused && document.activeElement === document.body;
      if (isLost) place.querySelector(".live-words [aria-pressed=true]")?.focus({ preventScroll: true });
    } catch (error) {
      line.textContent = `It could not be loaded: ${error.message}.`;
      box.replaceChildren(line, button("Try again", begin));
    }
  };
  const size = bytes ? `${(bytes / 1e6).toFixed(bytes < 1e7 ? 1 : 0)} MB` : "already here";
  box.append(button(`${what} (${size})`, begin));
  return box;
}

// Run the newest job only: while one runs, later calls replace each other.
export function latest(job) {
  let running = false;
  let waiting = null;
  return async function run(...values) {
    if (running) {
      waiting = values;
      return;
    }
    running = true;
    try {
      await job(...values);
    } finally {
      running = false;
      if (waiting) {
        const next = waiting;
        waiting = null;
        run(...next);
      }
    }
  };
}
