// A scene to change: its caption, whether it is true, rival words and where one head looks.
import { Panel } from "./panel.js";
import { SceneEditor } from "./scene_editor.js";
import { button, h, latest, loader, status } from "./ui.js";
import { loadWorld } from "./world.js";

export default async function build(body) {
  const world = await loadWorld();
  let captioner = null;
  let panel = null;
  let example = 0;
  const line = status();
  const result = h("div");
  const describe = latest(async () => {
    if (!captioner) return;
    const objects = editor.objects.map((one) => ({ ...one }));
    const { size } = captioner.spec.preprocess;
    const memory = await captioner.encode(world.render(objects, size));
    const { ids } = await captioner.beam(memory, 3);
    const caption = captioner.text(ids);
    line.replaceChildren(`The model writes: ${caption} (`, h("strong", {},
      world.verdict(caption, objects)), ")");
    panel.show(await captioner.read(memory, ids));
  });
  const editor = new SceneEditor(world, world.scenes[0].objects, describe);
  const other = button("Another scene", () => {
    example = (example + 1) % world.scenes.length;
    editor.replace(world.scenes[example].objects);
  });
  editor.controls.append(other);
  const load = await loader("scenes", "Load the captioner of scenes", (loaded) => {
    captioner = loaded;
    panel = new Panel(captioner, editor.picture);
    result.append(panel.element);
    return describe();
  });
  body.append(h("p", {}, "Choose a shape, then drag it or move it with the arrow keys (Delete removes it); "
    + "change its colour, shape, size or texture. The captioner is small and often wrong: the page checks each caption "
    + "against the drawing, and names the words that are not true."),
  h("div", { class: "live-stage" }, h("div", { class: "live-beside" }, editor.picture, line),
    h("div", {}, editor.controls, load, result)));
}
