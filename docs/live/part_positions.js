// The table of sinusoidal positions, and the wavelength of one pair of columns.
import { h, slider, status } from "./ui.js";

const LENGTH = 64;

export default function build(body) {
  const options = { width: 32, exponent: 4, pair: 3 };
  const canvas = h("canvas", { class: "live-table", role: "img" });
  const svg = h("svg", { viewBox: "0 0 640 90", role: "img", class: "live-wave" });
  const line = status();
  const draw = () => {
    const { width, exponent } = options;
    const pair = Math.min(options.pair, width / 2 - 1);
    const frequency = (i) => 10 ** (-exponent * 2 * i / width);
    canvas.width = width;
    canvas.height = LENGTH;
    const image = new ImageData(width, LENGTH);
    for (let t = 0; t < LENGTH; t++) {
      for (let column = 0; column < width; column++) {
        const angle = t * frequency(column >> 1);
        const value = column % 2 ? Math.cos(angle) : Math.sin(angle);
        const grey = Math.round(127.5 * (1 + value));
        const chosen = column >> 1 === pair;
        image.data.set([chosen ? 0.3 * grey : grey, chosen ? 0.65 * grey : grey,
          chosen ? 80 + 0.68 * grey : grey, 255], 4 * (t * width + column));
      }
    }
    canvas.getContext("2d").putImageData(image, 0, 0);
    const wave = (f) => Array.from({ length: 321 }, (_, i) =>
      `${i ? "L" : "M"}${2 * i} ${45 - 38 * f(i / 320 * LENGTH * frequency(pair))}`).join("");
    svg.replaceChildren(h("path", { d: wave(Math.sin), class: "sine" }), h("path", { d: wave(Math.cos), class: "cosine" }));
    const length = 2 * Math.PI / frequency(pair);
    line.textContent = `Pair ${pair} (columns ${2 * pair} and ${2 * pair + 1}, marked) turns by `
      + `${frequency(pair).toPrecision(2)} radians a position: its wavelength is ${length.toPrecision(3)} positions.`;
    canvas.setAttribute("aria-label", `${LENGTH} positions by ${width} columns; ${line.textContent}`);
    svg.setAttribute("aria-label", `Sine and cosine of pair ${pair} over ${LENGTH} positions`);
  };
  const field = (label, name, range, show) => slider(label, { ...range, value: options[name], show }, (value) => {
    options[name] = value;
    draw();
  });
  body.append(h("div", { class: "live-controls" },
    field("Pair", "pair", { min: 0, max: 31, step: 1 }),
    field("Width", "width", { min: 8, max: 64, step: 8 }),
    field("Base", "exponent", { min: 1, max: 5, step: 0.5 }, (value) => String(Math.round(10 ** value)))),
  line, h("p", {}, "The table: a row for each position, dark for −1, bright for 1."), canvas,
  h("p", {}, "Sine (solid) and cosine (dashed) of the pair, from position 0 to 63:"), svg);
  draw();
}
