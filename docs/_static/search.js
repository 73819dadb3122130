// The search page: one file with every page, part, public name, option and term, ranked here.
(() => {
  "use strict";
  const SILENT = new Set(("a about an and are as at be by can do does for from get has have how i in into is it its me "
    + "my of on one or own so that the their this to use used using want we what when where which why will with "
    + "you your").split(" "));
  const KIND = { task: 1.5, lesson: 1.35, command: 1.25, page: 1, module: 0.85, notebook: 0.6, inner: 0.5, solution: 0.4, tests: 0.3 };
  const LABEL = { task: "How to", lesson: "Lesson", command: "Command", page: "Page", module: "Reference",
    inner: "Reference", notebook: "Module notebook", solution: "Solutions", tests: "Test" };
  const SHOWN = 40;

  const stem = (word) => word.replace(/(ations?|ings?|ers?|ed|es|s|e)$/, (end, _, at) => (at > 2 ? "" : end));
  const split = (text) => (text.toLowerCase().match(/[a-z0-9]+/g) || []).map(stem);
  const isCode = (text) => /[._]|^--|^captionlab |^[A-Z][a-z]+([A-Z]|[a-z]+$)/.test(text);

  const read = async () => {
    const { pages, entries, words } = await (await fetch("search.json")).json();
    const spread = new Map();  // of each stem the pages that have it
    for (const [word, numbers] of Object.entries(words)) {
      const key = stem(word);
      if (!spread.has(key)) spread.set(key, new Set());
      numbers.forEach((number) => spread.get(key).add(number));
    }
    return {
      spread,
      count: pages.length,
      entries: entries.map(([number, anchor, title, excerpt, given = ""]) => {
        const [page, kind, keys] = pages[number];
        const named = /^(module|inner)$/.test(kind) && Boolean(anchor) && /^captionlab\./.test(title);
        return { number, page, anchor, title, excerpt, kind, named, given: given.split(" "), inner: /\.[A-Z]\w*\./.test(title),
          keys: anchor ? [] : keys,
          inTitle: split(title), inExcerpt: new Set(split(excerpt)) };
      }),
    };
  };

  // How well one entry answers: exact names and keys above all, then words in titles, excerpts, pages.
  const rate = (entry, query, tokens, weights, spread) => {
    const low = query.toLowerCase();
    const title = entry.title.toLowerCase();
    let score = 0;
    if (entry.named && (entry.title === query || entry.title.endsWith(`.${query}`))) score += isCode(query) ? 900 : entry.inner || query === query.toUpperCase() ? 300 : 830;
    else if (entry.named && query !== low && (title === low || title.endsWith(`.${low}`))) score += 150;
    if (isCode(query) && entry.given.includes(low)) score += /Config$/.test(entry.title) ? 500 : 300;
    if (entry.kind === "command" && (title === low || title.split(" ")[0] === low)) score += isCode(query) ? 800 : 350;
    if (entry.keys.includes(low)) score += entry.kind === "task" ? 600 : 500;
    if (title.includes(low)) score += 60;
    let matched = 0;
    tokens.forEach((token, index) => {
      let best = 0;
      if (entry.inTitle.includes(token)) best = 30;
      else if (entry.inTitle.some((word) => word.startsWith(token))) best = 12;
      else if (entry.keys.some((key) => split(key).includes(token))) best = 24;
      else if (entry.inExcerpt.has(token)) best = 9;
      else if (!entry.anchor && spread.get(token)?.has(entry.number)) best = 4;
      if (best) matched += weights[index];
      score += best * weights[index];
    });
    const all = weights.reduce((sum, one) => sum + one, 0);
    const whole = tokens.length ? (matched / all) ** 3 : 1;
    const brief = 1 + 1 / (4 + entry.inTitle.length);
    if (entry.named && query.includes(" ")) score *= 0.6;  // words, not a name
    return (score > 140 && !matched ? score : score * whole) * brief * KIND[entry.kind] * (entry.anchor && !entry.named ? 0.9 : 1);
  };

  const find = ({ entries, spread, count }, query) => {
    const every = split(query);
    const asked = (query.toLowerCase().match(/[a-z0-9]+/g) || []).filter((word) => !SILENT.has(word)).map(stem);
    const tokens = [...new Set(asked.length ? asked : every)];
    const weights = tokens.map((token) => Math.log(2 + count / (1 + (spread.get(token)?.size ?? count / 3))));
    return entries
      .map((entry) => [rate(entry, query, tokens, weights, spread), entry])
      .filter(([score]) => score > 8)
      .sort(([one], [other]) => other - one)
      .slice(0, SHOWN)
      .map(([, entry]) => entry);
  };

  const element = (name, className, ...content) => {
    const made = document.createElement(name);
    if (className) made.className = className;
    made.append(...content);
    return made;
  };

  const show = (box, found, pages) => {
    const items = found.map((entry) => {
      const link = element("a", "", entry.title);
      link.href = `${entry.page}.html${entry.anchor && `#${entry.anchor}`}`;
      const place = entry.anchor && !entry.named ? ` · ${pages.get(entry.number)}` : "";
      return element("li", `cl-found cl-${entry.kind}`, link, element("span", "cl-kind", LABEL[entry.kind] + place),
        ...(entry.excerpt ? [element("p", "", entry.excerpt)] : []));
    });
    box.replaceChildren(element("ul", "search", ...items));
  };

  document.addEventListener("DOMContentLoaded", async () => {
    const box = document.getElementById("search-results");
    const status = document.getElementById("search-status");
    const field = document.querySelector(".bd-search-container input[type=search]");
    const query = (new URLSearchParams(location.search).get("q") || "").trim();
    field.value = query;
    if (!query) return;
    status.textContent = "Searching …";
    const index = await read();
    const pages = new Map(index.entries.filter((one) => !one.anchor).map((one) => [one.number, one.title]));
    const found = find(index, query);
    show(box, found, pages);
    status.textContent = found.length ? `${found.length === SHOWN ? "The best " : ""}${found.length} results for “${query}”`
      : `Nothing found for “${query}”. Try another word, or see the list of lessons at the left.`;
  });
})();
