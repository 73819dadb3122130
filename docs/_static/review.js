// Five questions on earlier lessons: a reader chooses, and the answer is said. Without the script the
// answers are folded.
(() => {
  "use strict";
  const { openStore, button, offer, settle, verdict } = window.captionlabChoices;
  const { made, keep } = openStore("captionlab.reviews");

  const prepare = (question, lesson, count) => {
    const id = `${lesson}:${question.dataset.id}`;
    const right = Number(question.dataset.right) - 1;
    const items = [...question.querySelectorAll("li")];
    const details = question.querySelector("details");
    const reason = details.querySelector("span");
    const status = verdict();

    const show = () => {
      const chosen = made[id];
      settle(items, chosen, right);
      const said = chosen === right ? "Right. " : `Not right, it is ${right + 1}. `;
      status.replaceChildren(...(chosen === undefined ? [] : [said, reason.cloneNode(true)]));
    };
    offer(items, (index) => {
      made[id] = index;
      keep();
      show();
      count();
    });
    details.replaceWith(status);
    show();
    return { id, right, show };
  };

  const start = (review) => {
    const tally = document.createElement("p");
    tally.className = "cl-tally";
    const questions = [];
    const again = button(["Answer again"], () => {
      questions.forEach((one) => delete made[one.id]);
      keep();
      questions.forEach((one) => one.show());
      count();
      review.querySelector("button").focus();
    });
    again.className = "cl-again";
    const count = () => {
      const here = questions.filter((one) => one.id in made);
      const right = here.filter((one) => made[one.id] === one.right);
      tally.replaceChildren(`${here.length} of ${questions.length} answered, ${right.length} right. `);
      if (here.length) tally.append(again);
    };
    for (const question of review.querySelectorAll(".cl-question")) {
      questions.push(prepare(question, review.dataset.lesson, count));
    }
    review.querySelector(".cl-call").replaceWith(tally);
    count();
  };

  document.addEventListener("DOMContentLoaded", () => {
    document.querySelectorAll(".cl-review").forEach(start);
  });
})();
