// A photo, its caption, each word's probability and where the model looked.
import { photoChooser } from "./chooser.js";
import { Panel } from "./panel.js";
import { resize } from "./pixels.js";
import { h, latest, loader, status } from "./ui.js";

const BEAM = 3;                 // as `run.caption` has it

// The chooser, the picture and the panel; `onTrace` gets what the model wrote, `extra` stands between
// its caption and the words.
export async function photoPart(body, { heads = false, onTrace = () => {}, extra = [] } = {}) {
  let captioner = null;
  let panel = null;
  let image = null;
  const result = h("div");
  const line = status();
  const describe = latest(async () => {
    if (!captioner || !image) return;
    line.textContent = "Looking at the photo …";
    await new Promise((done) => { setTimeout(done); });     // let the page show this first
    const memory = await captioner.encode(resize(image, captioner.spec.preprocess));
    const { ids } = await captioner.beam(memory, BEAM);
    const trace = await captioner.read(memory, ids);
    line.replaceChildren(`The model writes: ${captioner.text(ids)}`, ...captioner.isStrange ? [h("strong",
      { class: "live-warning" }, "Careful: this picture is unlike those that the model learned from. Do "
      + "not trust its caption.")] : []);
    panel.show(trace);
    onTrace({ captioner, memory, panel, trace });
  });
  const chooser = await photoChooser(body, (newImage) => {
    image = newImage;
    if (panel) panel.chosen = null;
    return describe();
  });
  const load = await loader("photos", "Load the captioner, and caption this photo", (loaded) => {
    captioner = loaded;
    panel = new Panel(captioner, chooser.picture, { heads });
    result.append(panel.element);
    return describe();
  });
  body.append(h("p", {}, "The captioner has seen Flickr8k's photos, most of them of people and dogs "
    + "outdoors: of other pictures it may say what is not there."), chooser.element, h("div", { class: "live-stage" }, chooser.picture,
    h("div", {}, load, line, ...extra, result)));
  chooser.first();
}

export default (body) => photoPart(body);
