// Predictions: a reader chooses before the result shows. What follows a question is folded until
// then; choices are kept in this browser. Without the script everything is visible.
(() => {
  "use strict";
  const KEY = "captionlab.predictions";

  const load = () => {
    try {
      const kept = JSON.parse(localStorage.getItem(KEY));
      return kept && typeof kept === "object" ? kept : {};
    } catch {
      return {};
    }
  };
  const made = load();
  const keep = () => {
    try { localStorage.setItem(KEY, JSON.stringify(made)); } catch { /* private window */ }
  };

  const isCell = (element) => element.classList.contains("cell");
  const hasInput = (cell) => cell.querySelector(".cell_input");
  const hasOutput = (cell) => cell.querySelector(".cell_output");
  const isQuestion = (element) => element.querySelector(".cl-predict");
  const isSection = (element) => /^(SECTION|H[1-6])$/.test(element.tagName);

  // The outputs of the next code cell that has any, and the text from there to the cell after it.
  const spoilers = (cell) => {
    const found = [];
    let next = cell.nextElementSibling;
    // If text follows instead of code, it is the answer.
    let shown = Boolean(next) && !isCell(next);
    for (; next && !isSection(next) && !isQuestion(next); next = next.nextElementSibling) {
      if (!isCell(next)) {
        if (shown) found.push(next);
      } else if (!shown && hasInput(next)) {
        if (hasOutput(next)) {
          found.push(...next.querySelectorAll(".cell_output"));
          shown = true;
        }
      } else if (hasInput(next)) {
        break;
      } else {
        found.push(next);
        shown = true;
      }
    }
    return found;
  };

  const button = (text, action) => {
    const element = document.createElement("button");
    element.type = "button";
    element.append(...text);
    element.addEventListener("click", action);
    return element;
  };

  const tally = document.createElement("p");
  const count = (questions) => {
    const here = questions.filter((one) => one.dataset.id in made);
    const right = here.filter((one) => made[one.dataset.id] === Number(one.dataset.right));
    tally.textContent =
      `Predictions in this lesson: ${here.length} of ${questions.length} made, ${right.length} right.`;
  };

  const prepare = (question, questions) => {
    const id = question.dataset.id;
    const right = Number(question.dataset.right);
    const cell = question.closest("div.cell");
    const hidden = spoilers(cell);
    const box = cell.previousElementSibling;
    if (box && box.matches(".admonition.predict")) {
      box.append(question);
      cell.remove();
    }
    const items = [...question.querySelectorAll("li")];
    const status = document.createElement("p");
    status.className = "cl-verdict";
    status.setAttribute("role", "status");
    const skip = button(["Show the result without a prediction"], () => open());
    skip.className = "cl-skip";

    const open = () => {
      hidden.forEach((element) => element.classList.remove("cl-folded"));
      skip.remove();
    };
    const settle = () => {
      const chosen = made[id];
      items.forEach((item, index) => {
        item.firstChild.disabled = true;
        item.firstChild.setAttribute("aria-pressed", String(index === chosen));
        item.classList.toggle("cl-right", index === right);
      });
      status.textContent = chosen === right ? "As you predicted." : "It came out differently.";
      open();
      count(questions);
    };

    items.forEach((item, index) => {
      const choice = button([...item.childNodes], () => {
        made[id] = index;
        keep();
        settle();
      });
      item.replaceChildren(choice);
    });
    question.append(status);
    if (id in made) {
      settle();
    } else {
      hidden.forEach((element) => element.classList.add("cl-folded"));
      if (hidden.length) question.append(skip);
      // A link, or a search, may lead to something that is folded.
      const reveal = () => {
        const target = location.hash.length > 1 && document.getElementById(decodeURIComponent(location.hash.slice(1)));
        if (target && hidden.some((element) => element.contains(target))) open();
      };
      addEventListener("hashchange", reveal);
      reveal();
    }
  };

  document.addEventListener("DOMContentLoaded", () => {
    const questions = [...document.querySelectorAll(".cl-predict")];
    if (!questions.length) return;
    questions.forEach((question) => prepare(question, questions));
    tally.className = "cl-tally";
    questions.at(-1).closest("article").append(tally);
    count(questions);
  });
})();
