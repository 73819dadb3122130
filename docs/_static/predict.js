// Predictions: a reader chooses before the result shows. What follows a question is folded until
// then; choices are kept in this browser. Without the script everything is visible.
(() => {
  "use strict";
  const { openStore, button, offer, settle, verdict } = window.captionlabChoices;
  const { made, keep } = openStore("captionlab.predictions");

  const isCell = (element) => element.classList.contains("cell");
  const hasInput = (cell) => cell.querySelector(".cell_input");
  const hasOutput = (cell) => cell.querySelector(".cell_output");
  const isQuestion = (element) => element.querySelector(".cl-predict");
  const isSection = (element) => /^(SECTION|H[1-6])$/.test(element.tagName);
  // A paragraph that ends with a colon leads to the cell below it and gives nothing away.
  const leadsOn = (element) =>
    element.tagName === "P" && element.textContent.trim().endsWith(":") &&
    element.nextElementSibling && isCell(element.nextElementSibling);

  // The outputs of the next code cells that have any, and the text from there to the cell after it.
  const spoilers = (cell) => {
    const found = [];
    let next = cell.nextElementSibling;
    // If text follows instead of code, it is the answer.
    let told = Boolean(next) && !isCell(next) && !leadsOn(next);
    let shown = told;
    for (; next && !isSection(next) && !isQuestion(next); next = next.nextElementSibling) {
      if (leadsOn(next)) continue;
      if (!isCell(next)) {
        if (shown) found.push(next);
        told = told || shown;
      } else if (!told && hasInput(next)) {
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
    // Without a script each choice opens to the sentence about it.
    const choices = [...question.querySelectorAll("details")];
    const said = choices.map((choice) => [...choice.childNodes].slice(1));
    const items = choices.map((choice) => {
      const item = document.createElement("li");
      item.append(...choice.querySelector("summary").childNodes);
      return item;
    });
    const list = document.createElement("ol");
    list.append(...items);
    question.replaceChildren(list);
    const status = verdict();
    const skip = button(["Show the result without a prediction"], () => open());
    skip.className = "cl-skip";

    const open = () => {
      hidden.forEach((element) => element.classList.remove("cl-folded"));
      skip.remove();
    };
    const show = () => {
      const chosen = made[id];
      settle(items, chosen, right);
      status.replaceChildren(...(said[chosen] ?? []));
      open();
      count(questions);
    };

    offer(items, (index) => {
      made[id] = index;
      keep();
      show();
    });
    question.append(status);
    if (id in made) {
      show();
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
