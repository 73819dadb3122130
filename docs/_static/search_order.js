// The order of search results: lessons first, then the glossary, how-to pages and the reference;
// solutions and the source of tests last. Sphinx puts this file at the top of searchtools.js.
var Scorer = {
  places: [
    [/^course\/solutions\//, -60],
    [/^course\/library\//, 0],
    [/^course\//, 40],
    [/^api\/glossary$/, 20],
    [/^api\/tests\//, -80],
    [/^api\//, -10],
  ],

  score: (result) => {
    // A lesson found by its entry in the index opens at its top, and is listed once.
    if ((result[2] || "").startsWith("#index-")) result[2] = "";
    const [docname, title, , , score] = result;
    const [, bonus] = Scorer.places.find(([place]) => place.test(docname)) || [null, 0];
    // "21 · Training: a loop ..." is about training.
    const query = new URLSearchParams(location.search).get("q") || "";
    const subject = title.split(" > ")[0].split(":")[0].toLowerCase();
    const named = query && subject.includes(query.trim().toLowerCase());
    return score + bonus + (named ? 30 : 0);
  },

  // Sphinx's own weights
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};

// An excerpt is of the page's text, without its buttons and its table of contents.
document.addEventListener("DOMContentLoaded", () => {
  const whole = Search.htmlToText;
  Search.htmlToText = (html, anchor) => {
    const page = new DOMParser().parseFromString(html, "text/html");
    const article = page.querySelector("article.bd-article");
    if (!article) return whole(html, anchor);
    article.querySelectorAll(".sources, .headerlink, .tie").forEach((line) => line.remove());
    article.setAttribute("role", "main");
    return whole(article.outerHTML, anchor);
  };
});
