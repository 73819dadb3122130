// A caption to edit: BLEU, ROUGE-L and CIDEr beside what is true of the scene.
import { bleu, cider, loadCounts, rougeL, tokens } from "./scores.js";
import { button, h, status } from "./ui.js";
import { loadWorld } from "./world.js";

export default async function build(body) {
  const [world, counts] = await Promise.all([loadWorld(), loadCounts()]);
  let scene = 0;
  const canvas = h("canvas", { width: 192, height: 192, role: "img", "aria-label": "The scene" });
  const [references, table, line] = [h("ul"), h("dl", { class: "live-scores" }), status()];
  const input = h("input", { type: "text", size: 44, input: () => judge() });
  const judge = () => {
    const { objects, captions } = world.scenes[scene];
    const words = tokens(input.value);
    const known = captions.map(tokens);
    const blues = words.length ? bleu(words, known) : [0, 0, 0, 0];
    const rows = { "BLEU-1": blues[0], "BLEU-4": blues[3], "ROUGE-L": words.length ? rougeL(words, known) : 0,
      CIDEr: words.length ? cider(words, known, counts) : 0 };
    table.replaceChildren(...Object.entries(rows).map(([name, value]) =>
      h("div", {}, h("dt", {}, name), h("dd", {}, value.toFixed(1)))));
    line.textContent = `The caption is ${world.verdict(input.value, objects)}.`;
  };
  const show = () => {
    const { objects, captions } = world.scenes[scene];
    const pixels = world.render(objects, 192);
    const image = new ImageData(192, 192);
    for (let i = 0; i < 192 * 192; i++) image.data.set([...pixels.subarray(3 * i, 3 * i + 3), 255], 4 * i);
    canvas.getContext("2d").putImageData(image, 0, 0);
    references.replaceChildren(...captions.map((text) => h("li", {}, text)));
    input.value = captions[0];
    judge();
  };
  body.append(h("div", { class: "live-stage" }, h("div", { class: "live-picture" }, canvas),
    h("div", {}, h("p", {}, "The five references:"), references)),
  h("div", { class: "live-controls" }, h("label", { class: "live-field" }, "Your caption (begin with "
    + "changing one word)", input), button("Another scene", () => {
    scene = (scene + 1) % world.scenes.length;
    show();
  })), line, table);
  show();
}
