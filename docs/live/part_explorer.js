// Any word, layer and head on a photo, and the score of a caption of one's own.
import { photoPart } from "./part_photo.js";
import { button, h, status } from "./ui.js";

export default async function build(body) {
  let now = null;
  const line = status();
  const input = h("input", { type: "text", size: 36, "aria-label": "Your caption",
    placeholder: "a dog is running on the grass" });
  const judge = async () => {
    if (!now) {
      line.textContent = "Load the captioner first.";
      return;
    }
    const { captioner, memory, panel } = now;
    const words = input.value.toLowerCase().match(/[\p{L}\d'-]+/gu) ?? [];
    const unknown = [...new Set(words)].filter((word) => !captioner.ids.has(word));
    if (!words.length || unknown.length) {
      line.textContent = words.length ? `The model does not know ${unknown.join(", ")}: use other words.`
        : "Write a caption first.";
      return;
    }
    if (words.length >= captioner.spec.max_length) {
      line.textContent = `At most ${captioner.spec.max_length - 1} words: the model wrote no longer ones.`;
      return;
    }
    const ids = [...words.map((word) => captioner.ids.get(word)), captioner.spec.eos];
    const bits = (trace) => trace.steps.reduce((sum, { logProbs }, step) =>
      sum - logProbs[trace.ids[step]] / Math.LN2, 0);
    const trace = await captioner.read(memory, ids);
    panel.show(trace);
    line.textContent = `Your caption has ${bits(trace).toFixed(1)} bits, the model's own `
      + `${bits(now.trace).toFixed(1)}: one bit less is twice as likely. Below are the words of yours.`;
  };
  const form = h("form", { class: "live-controls", submit: (event) => {
    event.preventDefault();
    judge();
  } }, h("label", { class: "live-field" }, "Score a caption of your own", input),
  h("button", { class: "live-button" }, "Score it"),
  button("Back to the model's", () => {
    now?.panel.show(now.trace);
    line.textContent = "";
  }));
  await photoPart(body, { heads: true, extra: [form, line], onTrace: (found) => {
    now = found;
    line.textContent = "";
  } });
}
