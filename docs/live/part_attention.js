// Scaled dot-product attention over the three things of lesson 01.
import { bars, h, slider, status } from "./ui.js";

const THINGS = ["red circle", "blue square", "purple triangle"];
const VALUES = [[0, 0.3], [4, 0.4], [3, 0.2]];       // corners and width

export default function build(body) {
  const keys = [[1, 0], [0, 1], [1, 1]];
  const query = [-1, 2];
  let scale = 1;
  const [table, line, weightBars] = [h("div"), status(), h("div")];
  const draw = () => {
    const scores = keys.map((key) => (key[0] * query[0] + key[1] * query[1]) / scale);
    const most = Math.max(...scores);
    const powers = scores.map((score) => Math.exp(score - most));
    const sum = powers.reduce((a, b) => a + b, 0);
    const weights = powers.map((power) => power / sum);
    const mixed = [0, 1].map((i) => weights.reduce((total, weight, n) => total + weight * VALUES[n][i], 0));
    table.replaceChildren(h("p", {}, "Scores: ", THINGS.map((thing, i) =>
      `${thing} ${scores[i].toFixed(2)}`).join(", ")));
    weightBars.replaceChildren(bars(THINGS.map((thing, i) => [thing, weights[i], weights[i].toFixed(2)]),
      THINGS[weights.indexOf(Math.max(...weights))]));
    line.textContent = `Output: ${mixed[0].toFixed(2)} corners, ${mixed[1].toFixed(2)} of the picture wide.`;
  };
  const range = { min: -4, max: 4, step: 0.25 };
  const vector = (name, numbers) => h("fieldset", {}, h("legend", {}, name), ...["red", "blue"].map(
    (word, i) => slider(word, { ...range, value: numbers[i] }, (value) => {
      numbers[i] = value;
      draw();
    })));
  body.append(h("p", {}, "Each thing has a key: how red and how blue it is. The query asks for something. "
    + "The scores are divided by the scale before the softmax."),
  h("div", { class: "live-controls" }, vector("Query", query),
    ...keys.map((key, i) => vector(`Key of the ${THINGS[i]}`, key)),
    slider("Divide the scores by", { min: 0.25, max: 8, step: 0.25, value: 1 }, (value) => {
      scale = value;
      draw();
    })), table, h("p", {}, "Weights:"), weightBars, line);
  draw();
}
