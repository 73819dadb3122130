// A mask to click cell by cell, and the weights that it leaves.
import { button, h, status } from "./ui.js";

const WORDS = ["a", "red", "circle", "inside", "(pad)"];
const SCORES = WORDS.map((_, t) => WORDS.map((_, s) => Math.sin(3 * t + 2 * s) + 0.3 * s));
const PRESETS = {
  "Everything": () => true,
  "Look-ahead": (t, s) => s <= t,
  "Padding": (t, s) => WORDS[s] !== "(pad)",
  "Both": (t, s) => s <= t && WORDS[s] !== "(pad)",
  "Nothing": () => false,
};

export default function build(body) {
  const size = WORDS.length;
  const mask = WORDS.map((_, t) => WORDS.map((_, s) => PRESETS["Look-ahead"](t, s)));
  const line = status();
  const cell = (t, s) => h("button", { type: "button", click: () => toggle(t, s),
    keydown: (event) => move(event, t, s), tabindex: t + s ? -1 : 0 });
  const cells = WORDS.map((_, t) => WORDS.map((_, s) => cell(t, s)));
  const draw = () => cells.forEach((row, t) => {
    const powers = SCORES[t].map((score, s) => mask[t][s] ? Math.exp(score) : 0);
    const sum = powers.reduce((a, b) => a + b, 0);
    row.forEach((one, s) => {
      const weight = sum ? powers[s] / sum : 0;
      one.textContent = weight.toFixed(2);
      one.style.setProperty("--share", weight);
      one.setAttribute("aria-pressed", String(mask[t][s]));
      one.setAttribute("aria-label", `${WORDS[t]} ${mask[t][s] ? "may" : "may not"} attend to `
        + `${WORDS[s]}, weight ${weight.toFixed(2)}`);
    });
  });
  const tell = (t) => {
    const allowed = WORDS.filter((_, s) => mask[t][s]);
    const ahead = mask[t].findIndex((open, s) => open && s > t);
    line.textContent = !allowed.length ? `“${WORDS[t]}” may attend to nothing: all its weights are 0.`
      : ahead > t ? `“${WORDS[t]}” sees “${WORDS[ahead]}”, which comes later: a leak in a decoder.`
        : `“${WORDS[t]}” shares its weight among ${allowed.join(", ")}.`;
  };
  const toggle = (t, s) => {
    mask[t][s] = !mask[t][s];
    draw();
    tell(t);
  };
  const move = (event, t, s) => {
    const [dt, ds] = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key]
      ?? [];
    if (dt === undefined) return;
    event.preventDefault();
    const next = cells[(t + dt + size) % size][(s + ds + size) % size];
    cells.flat().forEach((one) => { one.tabIndex = one === next ? 0 : -1; });
    next.focus();
  };
  const presets = Object.entries(PRESETS).map(([name, rule]) => button(name, () => {
    mask.forEach((row, t) => row.forEach((_, s) => { row[s] = rule(t, s); }));
    draw();
    line.textContent = `${name}: ${mask.flat().filter(Boolean).length} of ${size * size} cells are open.`;
  }));
  body.append(h("p", {}, "A row is a word that looks, a column a word that is looked at. Click a cell to "
    + "open or close it (arrow keys move, the space bar clicks); each row shows its attention weights."),
  h("div", { class: "live-controls" }, ...presets),
  h("table", { class: "live-mask" }, h("thead", {}, h("tr", {}, h("td"), ...WORDS.map((word) =>
    h("th", { scope: "col" }, word)))), h("tbody", {}, ...cells.map((row, t) => h("tr", {},
    h("th", { scope: "row" }, WORDS[t]), ...row.map((one) => h("td", {}, one)))))), line);
  draw();
}
