// Choose one of the site's photos, or a file of one's own; nothing leaves the page.
import { manifest } from "./captioner.js";
import { decode } from "./pixels.js";
import { h, status } from "./ui.js";

const HERE = new URL(".", import.meta.url);

export async function photoChooser(body, onPicture) {
  const { photos } = await manifest();
  const picture = h("div", { class: "live-picture" });
  const line = status();
  let newest = null;
  const show = async (source, name, chosen = null) => {
    newest = source;
    line.textContent = "Reading the picture …";
    try {
      const { image, canvas } = await decode(source);
      if (newest !== source) return;              // another was chosen meanwhile
      press(chosen);
      canvas.setAttribute("role", "img");
      canvas.setAttribute("aria-label", name);
      picture.querySelector("canvas:not(.live-map)")?.remove();
      picture.prepend(canvas);
      picture.style.setProperty("--ratio", canvas.width / canvas.height);
      line.textContent = "";
      await onPicture(image);
    } catch (error) {
      line.textContent = `${error.message}.`;
    }
  };
  const buttons = photos.map(({ file, text }) => {
    const source = new URL(`pictures/${file}`, HERE);
    return h("button", { type: "button", "aria-pressed": "false", click: ({ currentTarget }) => {
      input.value = "";
      return fetch(source).then((answer) => answer.blob()).then((blob) => show(blob, text, currentTarget));
    } }, h("img", { src: source, alt: text, loading: "lazy", width: 72, height: 72 }));
  });
  const press = (chosen) => buttons.forEach((one) =>
    one.setAttribute("aria-pressed", String(one === chosen)));
  const own = (file) => {
    if (!file) return;
    show(file, `your picture ${file.name}`);
  };
  const input = h("input", { type: "file", accept: "image/*", change: () => own(input.files[0]) });
  const drop = h("label", { class: "live-drop" }, "Your own photo, chosen here or dropped: it stays on "
    + "your machine. ", input);
  // A photo may be dropped anywhere on the part: elsewhere the browser would open it instead.
  body.addEventListener("dragover", (event) => event.preventDefault());
  body.addEventListener("drop", (event) => {
    event.preventDefault();
    if (event.dataTransfer.files.length) own(event.dataTransfer.files[0]);
    else line.textContent = "This was no file: save the picture first, then drop the file.";
  });
  const choices = h("div", { class: "live-photos", role: "group", "aria-label": "Photos to choose from" },
    ...buttons);
  const note = photos.length ? "" : "This copy of the site was built without photos to choose from.";
  const first = () => buttons[0]?.click();
  return { element: h("div", {}, choices, note, drop, line), picture, first };
}
