// Switch cross-attention heads off, and compare the caption with that of the whole model.
import { top } from "./captioner.js";
import { SceneEditor } from "./scene_editor.js";
import { bars, button, h, latest, loader, status } from "./ui.js";
import { loadWorld } from "./world.js";

export default async function build(body) {
  const world = await loadWorld();
  let captioner = null;
  let example = 0;
  let boxes = [];
  const [line, result] = [status(), h("div", { class: "live-columns" })];
  const describe = latest(async () => {
    if (!captioner) return;
    const objects = editor.objects.map((one) => ({ ...one }));
    const memory = await captioner.encode(world.render(objects, captioner.spec.preprocess.size));
    const off = boxes.filter(({ checked }) => checked).map(({ value }) => value.split(".").map(Number));
    const traces = [];
    for (const one of [memory, captioner.without(memory, off)]) {
      traces.push(await captioner.read(one, (await captioner.beam(one, 3)).ids));
    }
    const [whole, changed] = traces;
    const verdict = (trace) => `${captioner.text(trace.ids)} (${
      world.verdict(captioner.text(trace.ids), objects)})`;
    line.textContent = `All heads: ${verdict(whole)}. Without ${off.length} of ${boxes.length}: ${verdict(changed)}.`;
    const step = whole.ids.findIndex((id, i) => id !== changed.ids[i]);
    const at = step < 0 ? whole.ids.length - 1 : step;
    const before = whole.words.slice(0, at).join(" ") || "(begin)";
    const name = (id) => id === captioner.spec.eos ? "(end)" : captioner.words[id];
    const column = (title, trace) => h("div", {}, h("p", {}, `${title}, after “${before}”`),
      bars(top(trace.steps[at].logProbs, 5).map(([id, value]) => [name(id), Math.exp(value)]),
        name(trace.ids[at])));
    result.replaceChildren(column("All heads", whole), column("Some off", changed));
  });
  const editor = new SceneEditor(world, world.scenes[0].objects, describe);
  editor.controls.append(button("Another scene", () => {
    example = (example + 1) % world.scenes.length;
    editor.replace(world.scenes[example].objects);
  }));
  const heads = h("div", { class: "live-controls" });
  const load = await loader("scenes", "Load the captioner of scenes", (loaded) => {
    captioner = loaded;
    boxes = Array.from({ length: captioner.layers * captioner.heads }, (_, i) =>
      h("input", { type: "checkbox", value: `${Math.floor(i / captioner.heads)}.${i % captioner.heads}`,
        change: describe }));
    heads.append(h("span", {}, "Switch off:"), ...boxes.map((box) => h("label", {}, box, ` head ${box.value}`)));
    return describe();
  });
  body.append(h("p", {}, "A head is block.head of the decoder's cross-attention; off means that its output is "
    + "0. Change the scene, too: a head may matter for one and not for another."),
  h("div", { class: "live-stage" }, editor.picture,
    h("div", {}, editor.controls, load, heads, line, result)));
}
