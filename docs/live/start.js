// Start the live parts of a page, or say why they stay still. A plain script: a page that was
// opened as a file cannot load modules.
(() => {
  "use strict";
  const here = document.currentScript.src;
  const reason = () => {
    if (location.protocol === "file:") {
      return "This page was opened as a file, and browsers let no such page read a model: "
        + "run python -m http.server in its folder, and open the address that it prints.";
    }
    return typeof WebAssembly === "object" ? ""
      : "This browser has no WebAssembly, or it is switched off: the model cannot run here.";
  };
  document.addEventListener("DOMContentLoaded", () => {
    const parts = [...document.querySelectorAll("section.live")];
    if (!parts.length) return;
    const why = reason();
    if (why) parts.forEach((part) => part.querySelector(".live-still span").replaceChildren(why));
    else import(new URL("live.js", here)).then(({ start }) => parts.forEach(start));
  });
})();
