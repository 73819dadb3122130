// A caption whose words can be chosen: rivals of the word, and where the model looked before it.
import { argmax, top } from "./captioner.js";
import { bars, choice, h, percent, status } from "./ui.js";

const RIVALS = 6;

// Fade a picture where the weights (N,) are small.
export function drawMap(canvas, weights) {
  const side = Math.sqrt(weights.length);
  const most = Math.max(...weights);
  canvas.width = side;
  canvas.height = side;
  const image = new ImageData(side, side);
  weights.forEach((weight, i) => { image.data[4 * i + 3] = 140 * (1 - weight / most); });
  canvas.getContext("2d").putImageData(image, 0, 0);
}

export class Panel {
  // `picture` is the box over which the map lies; with `heads` every head has a small map.
  constructor(captioner, picture, { heads = false, distribution = null } = {}) {
    Object.assign(this, { captioner, distribution, chosen: null });
    this.map = h("canvas", { class: "live-map", "aria-hidden": "true" });
    picture.append(this.map);
    this.words = h("div", { class: "live-words", role: "group", "aria-label": "Words of the caption",
      keydown: (event) => this.move(event) });
    this.rivals = h("div");
    this.note = status();
    const { layers, heads: count } = captioner;
    const names = Array.from({ length: layers * count }, (_, i) =>
      [`${Math.floor(i / count)}.${i % count}`, `layer ${Math.floor(i / count)}, head ${i % count}`]);
    this.head = choice("Where it looked: ", [["mean", "mean of the last layer"], ["none", "show no map"],
      ...names], "mean", () => this.draw());
    this.grid = h("div", { class: "live-heads", style: `--heads: ${count}` });
    if (heads) {
      this.grid.append(...names.map(([key, text]) => h("button", { type: "button", "aria-label": text,
        title: text, click: ({ detail }) => {
          if (detail > 1) return;                   // the second of a double click
          this.head.select.value = this.head.select.value === key ? "mean" : key;     // a second click takes it back
          this.draw();
        } }, h("canvas", { "aria-hidden": "true" }))));
    }
    this.element = h("div", { class: "live-panel" }, h("p", {}, "Choose a word: its share says how likely the "
      + "model found it there, the bars which words it might have been, the map where the model looked."),
    this.words, this.note, h("div", { class: "live-columns" }, this.rivals, h("div", {}, this.head,
      heads ? h("p", {}, "Each small map is a head, each row a layer: choose one for the picture.") : "", this.grid)));
  }

  show(trace) {
    this.trace = trace;
    const last = trace.ids.length - 1;
    // At first the word that was the least certain, the first one apart.
    this.chosen = Math.min(last, this.chosen ?? 1 + argmax(trace.ids.slice(1).map((id, step) =>
      -trace.steps[step + 1].logProbs[id])));
    const focused = this.words.contains(document.activeElement);
    this.words.replaceChildren(...trace.ids.map((id, step) => {
      const share = Math.exp(trace.steps[step].logProbs[id]);
      return h("button", { type: "button", click: () => this.choose(step) },
        id === this.captioner.spec.eos ? "(end)" : this.captioner.words[id], h("small", {}, percent(share)));
    }));
    this.draw();
    if (focused) this.words.children[this.chosen].focus();
  }

  move(event) {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const buttons = [...this.words.children];
    const next = buttons.indexOf(document.activeElement) + step;
    this.choose(Math.max(0, Math.min(buttons.length - 1, next)));
    this.words.children[this.chosen].focus();
  }

  choose(step) {
    this.chosen = step;
    this.draw();
  }

  // Weights (N,) of a head, "layer.head", or the mean of the last layer.
  weights(head) {
    const { layers, heads, positions } = this.captioner;
    const { attention } = this.trace.steps[this.chosen];
    const at = (layer, one) => attention.subarray((layer * heads + one) * positions,
      (layer * heads + one + 1) * positions);
    if (head !== "mean") return at(...head.split(".").map(Number));
    const all = Array.from({ length: heads }, (_, one) => at(layers - 1, one));
    return Float32Array.from(all[0], (_, i) => all.reduce((sum, one) => sum + one[i], 0) / heads);
  }

  draw() {
    const { trace, chosen, captioner } = this;
    const name = (id) => id === captioner.spec.eos ? "(end)" : captioner.words[id];
    [...this.words.children].forEach((word, step) =>
      word.setAttribute("aria-pressed", String(step === chosen)));
    const { logProbs } = trace.steps[chosen];
    const rows = this.distribution ? this.distribution(logProbs).slice(0, RIVALS)
      : top(logProbs, RIVALS).map(([id, value]) => [id, Math.exp(value)]);
    const word = name(trace.ids[chosen]);
    const before = chosen ? `After “… ${trace.words.slice(Math.max(0, chosen - 3), chosen).join(" ")}”`
      : "At the beginning";
    const first = rows[0][0];
    if (!this.distribution && !rows.some(([id]) => id === trace.ids[chosen])) {
      rows.push([trace.ids[chosen], Math.exp(logProbs[trace.ids[chosen]])]);
    }
    this.rivals.replaceChildren(h("p", {}, `${before} the likeliest words are`),
      bars(rows.map(([id, share]) => [name(id), share]), word));
    if (!this.distribution && first !== trace.ids[chosen]) {
      this.rivals.append(h("p", {}, "The model looks for the likeliest whole caption: a word of it need not be "
        + "the likeliest in its place."));
    }
    const head = this.head.select.value;
    this.map.hidden = head === "none";
    [...this.grid.children].forEach((one) => {
      const key = one.title.match(/\d+/g).join(".");
      one.setAttribute("aria-pressed", String(key === head));
      drawMap(one.firstChild, this.weights(key));
    });
    if (head === "none") {
      this.note.textContent = "";
      return;
    }
    const weights = this.weights(head);
    drawMap(this.map, weights);
    const side = Math.sqrt(weights.length);
    const most = weights.indexOf(Math.max(...weights));
    this.note.textContent = `Bright is where the model looked before “${word}”: the largest weight, `
      + `${percent(weights[most])} of all, is in row ${Math.floor(most / side) + 1}, column ${most % side + 1} `
      + `of ${side}\u00a0×\u00a0${side}.`;
  }
}
