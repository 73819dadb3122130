// What predictions and reviews share: choices that are buttons, and answers kept in this browser.
window.captionlabChoices = (() => {
  "use strict";

  // Answers by the question's name; `keep` stores them.
  const openStore = (key) => {
    const load = () => {
      try {
        const kept = JSON.parse(localStorage.getItem(key));
        return kept && typeof kept === "object" ? kept : {};
      } catch {
        return {};
      }
    };
    const made = load();
    const keep = () => {
      try { localStorage.setItem(key, JSON.stringify(made)); } catch { /* private window */ }
    };
    return { made, keep };
  };

  const button = (content, action) => {
    const element = document.createElement("button");
    element.type = "button";
    element.append(...content);
    element.addEventListener("click", action);
    return element;
  };

  // Each item of a list becomes a button. One that has been settled keeps the focus, and does nothing.
  const offer = (items, choose) => items.forEach((item, index) => {
    const choice = button([...item.childNodes], () => {
      if (!choice.hasAttribute("aria-disabled")) choose(index);
    });
    item.replaceChildren(choice);
  });

  // Mark the choice and the right one; with no choice, open the question again.
  const settle = (items, chosen, right) => items.forEach((item, index) => {
    const settled = chosen !== undefined;
    for (const [name, value] of [["aria-disabled", true], ["aria-pressed", index === chosen]]) {
      if (settled) item.firstChild.setAttribute(name, String(value));
      else item.firstChild.removeAttribute(name);
    }
    item.classList.toggle("cl-right", settled && index === right);
  });

  const verdict = () => {
    const status = document.createElement("p");
    status.className = "cl-verdict";
    status.setAttribute("role", "status");
    return status;
  };

  return { openStore, button, offer, settle, verdict };
})();
