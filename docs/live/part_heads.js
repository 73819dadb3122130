// Switch heads of the decoder off, and compare the caption with that of the whole model.
import { top } from "./captioner.js";
import { SceneEditor } from "./scene_editor.js";
import { bars, button, h, latest, loader, status } from "./ui.js";
import { loadWorld } from "./world.js";

export default async function build(body) {
  const world = await loadWorld();
  let captioner = null;
  let example = 0;
  const boxes = [];
  const [line, result] = [status(), h("div", { class: "live-columns" })];
  const describe = latest(async () => {
    if (!captioner) return;
    const objects = editor.objects.map((one) => ({ ...one }));
    const memory = await captioner.encode(world.render(objects, captioner.spec.preprocess.size));
    const off = boxes.filter(({ checked }) => checked).map(({ value }) => value.split("."));
    const traces = [];
    for (captioner.off of [[], off]) {
      traces.push(await captioner.read(memory, (await captioner.beam(memory, 3)).ids));
    }
    const [whole, changed] = traces;
    const verdict = (trace) => `${captioner.text(trace.ids)} (${
      world.verdict(captioner.text(trace.ids), objects)})`;
    line.textContent = `All heads: ${verdict(whole)}. `
      + (off.length ? `Without ${off.length} of ${boxes.length}: ${verdict(changed)}.` : "Now switch one off.");
    const step = whole.ids.findIndex((id, i) => id !== changed.ids[i]);
    const at = step < 0 ? whole.ids.length - 1 : step;
    const before = whole.words.slice(0, at).join(" ") || "(begin)";
    const name = (id) => id === captioner.spec.eos ? "(end)" : captioner.words[id];
    const column = (title, trace) => h("div", {}, h("p", {}, `${title}, after “${before}”`),
      bars(top(trace.steps[at].logProbs, 5).map(([id, value]) => [name(id), Math.exp(value)]),
        name(trace.ids[at])));
    result.replaceChildren(column("All heads", whole), ...off.length ? [column("Some off", changed)] : []);
  });
  const editor = new SceneEditor(world, world.scenes[0].objects, describe);
  editor.controls.append(button("Another scene", () => {
    example = (example + 1) % world.scenes.length;
    editor.replace(world.scenes[example].objects);
  }));
  const heads = h("div", { class: "live-controls" });
  const load = await loader("scenes", "Load the captioner of scenes", (loaded) => {
    captioner = loaded;
    for (const [kind, title] of ["Self-attention, which reads the words", "Cross-attention, which reads the "
      + "picture"].entries()) {
      const group = h("fieldset", { style: `--heads: ${captioner.heads}` }, h("legend", {}, title));
      for (let i = 0; i < captioner.layers * captioner.heads; i++) {
        const [layer, head] = [Math.floor(i / captioner.heads), i % captioner.heads];
        const box = h("input", { type: "checkbox", value: `off_${2 * layer + kind}.${head}`, change: describe });
        group.append(h("label", {}, box, ` ${layer}.${head}`));
        boxes.push(box);
      }
      heads.append(group);
    }
    return describe();
  });
  body.append(h("p", {}, "Tick a head of the decoder, block.head, and its output is 0. Change the scene, too: a "
    + "head may matter for one and not for another."),
  h("div", { class: "live-stage" }, editor.picture,
    h("div", {}, editor.controls, load, heads, line, result)));
}
