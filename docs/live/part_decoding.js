// Greedy search, beam search and sampling on one scene.
import { narrow, sampler } from "./captioner.js";
import { Panel } from "./panel.js";
import { button, choice, h, latest, loader, slider, status } from "./ui.js";
import { loadWorld } from "./world.js";

const KEPT = 6;                 // samples that stay on the page

// The tree of a beam search: a column for each word; the caption found is drawn strong.
function drawTree(captioner, { nodes, tree }) {
  const columns = Map.groupBy(tree, ({ length }) => length);
  const rows = Math.max(...[...columns.values()].map((column) => column.length));
  const [width, height] = [104, 30];
  const place = new Map();
  for (const [length, column] of columns) {
    column.forEach((node, row) => place.set(node, [(length - 0.5) * width, (row + 0.7) * height]));
  }
  const name = ({ id }) => id === captioner.spec.eos ? "(end)" : captioner.words[id];
  const best = new Set(nodes);
  const children = tree.flatMap((node) => {
    const [x, y] = place.get(node);
    const [fromX, fromY] = node.parent ? place.get(node.parent) : [0, height * 0.7];
    const strong = best.has(node) ? { class: "strong" } : {};
    return [h("line", { ...strong, x1: fromX + (node.parent ? width * 0.36 : 0), y1: fromY,
      x2: x - width * 0.36, y2: y }),
    h("text", { ...strong, x, y: y + 4, "text-anchor": "middle" }, name(node), h("title", {},
      `log-probability so far ${node.total.toFixed(2)}`))];
  });
  return h("div", { class: "live-tree", tabindex: 0, role: "group", "aria-label": "The tree of the search" },
    h("svg", { width: columns.size * width, height: rows * height, role: "img",
      "aria-label": `Beam search kept ${tree.length} continuations; the caption found is `
      + `“${captioner.text(nodes.map(({ id }) => id))}”` }, ...children));
}

export default async function build(body) {
  const world = await loadWorld();
  const options = { method: "greedy", width: 3, temperature: 1, topK: 72, topP: 1, seed: 1 };
  let captioner = null;
  let panel = null;
  let memory = null;
  let scene = 0;
  const canvas = h("canvas", { role: "img" });
  const picture = h("div", { class: "live-picture" }, canvas);
  const [line, result, tree, samples] = [status(), h("div"), h("div"), h("ol", { class: "live-samples" })];
  const search = {
    greedy: async () => ({ ids: (await captioner.write(memory)).ids }),
    beam: () => captioner.beam(memory, options.width),
    sample: async () => ({ ids: (await captioner.write(memory, sampler(options))).ids }),
  };
  const write = latest(async () => {
    if (!captioner) return;
    const found = await search[options.method]();
    const trace = await captioner.read(memory, found.ids);
    const total = trace.steps.reduce((sum, { logProbs }, step) => sum + logProbs[trace.ids[step]], 0);
    const text = captioner.text(found.ids);
    const verdict = world.verdict(text, world.scenes[scene].objects);
    line.textContent = `${text} (${verdict}), log-probability ${total.toFixed(2)}`;
    tree.replaceChildren(...(found.tree ? [drawTree(captioner, found)] : []));
    if (options.method === "sample") {
      samples.prepend(h("li", {}, `${text} (${verdict}), ${total.toFixed(1)}`));
      while (samples.children.length > KEPT) samples.lastChild.remove();
    }
    panel.show(trace);
  });
  const look = async () => {
    const { objects } = world.scenes[scene];
    const size = 192;
    const pixels = world.render(objects, size);
    canvas.width = size;
    canvas.height = size;
    canvas.setAttribute("aria-label", `A scene: ${world.scenes[scene].captions.join(" ")}`);
    const image = new ImageData(size, size);
    for (let i = 0; i < size * size; i++) {
      image.data.set([...pixels.subarray(3 * i, 3 * i + 3), 255], 4 * i);
    }
    canvas.getContext("2d").putImageData(image, 0, 0);
    samples.replaceChildren();
    if (!captioner) return;
    memory = await captioner.encode(world.render(objects, captioner.spec.preprocess.size));
    await write();
  };
  const set = (name) => (value) => {
    options[name] = value;
    write();
  };
  const fields = {
    beam: [slider("Beam width", { min: 1, max: 5, step: 1, value: 3 }, set("width"))],
    sample: [
      slider("Temperature", { min: 0.1, max: 2, step: 0.1, value: 1 }, set("temperature")),
      slider("Top-k", { min: 1, max: 72, step: 1, value: 72 }, set("topK")),
      slider("Top-p", { min: 0.05, max: 1, step: 0.05, value: 1 }, set("topP")),
      button("Draw another caption", () => set("seed")(options.seed + 1)),
    ],
  };
  const showFields = () => Object.entries(fields).forEach(([method, elements]) =>
    elements.forEach((element) => { element.hidden = method !== options.method; }));
  const method = choice("Method", [["greedy", "greedy"], ["beam", "beam search"], ["sample", "sampling"]],
    "greedy", (value) => {
      options.method = value;
      showFields();
      write();
    });
  const other = button("Another scene", () => {
    scene = (scene + 1) % world.scenes.length;
    look();
  });
  showFields();
  const load = await loader("scenes", "Load the captioner of scenes", (loaded) => {
    captioner = loaded;
    // While sampling, the bars show what the word is drawn from.
    panel = new Panel(captioner, picture, { distribution: (logProbs) =>
      narrow(logProbs, options.method === "sample" ? options : {}) });
    result.append(panel.element);
    return look();
  });
  body.append(h("div", { class: "live-controls" }, method, ...Object.values(fields).flat(), other),
    h("div", { class: "live-stage" }, picture, h("div", {}, load, line, samples, result)), tree);
  await look();
}
