// BLEU, ROUGE-L and CIDEr-D of one caption, as pycocoevalcap computes them; in percent.
export const tokens = (text) => text.toLowerCase().match(/[a-z0-9]+(?:[-'][a-z0-9]+)*/g) ?? [];

function groups(words, n) {
  const counts = new Map();
  for (let i = 0; i + n <= words.length; i++) {
    const group = words.slice(i, i + n).join(" ");
    counts.set(group, (counts.get(group) ?? 0) + 1);
  }
  return counts;
}

const sum = (values) => values.reduce((a, b) => a + b, 0);

// BLEU-1 to BLEU-4 against the reference of the nearest length.
export function bleu(words, references) {
  const [tiny, small] = [1e-15, 1e-9];
  const lengths = references.map((one) => one.length);
  const distance = (length) => Math.abs(length - words.length);
  const nearest = lengths.reduce((best, one) => distance(one) < distance(best)
    || (distance(one) === distance(best) && one < best) ? one : best);
  const ratio = (words.length + tiny) / (nearest + small);
  const penalty = ratio < 1 ? Math.exp(1 - 1 / ratio) : 1;
  let product = 1;
  return [1, 2, 3, 4].map((n) => {
    const most = references.map((one) => groups(one, n));
    const matches = sum([...groups(words, n)].map(([group, count]) =>
      Math.min(count, Math.max(...most.map((counts) => counts.get(group) ?? 0)))));
    product *= (matches + tiny) / (Math.max(0, words.length - n + 1) + small);
    return 100 * product ** (1 / n) * penalty;
  });
}

function longestCommon(a, b) {
  let row = new Array(b.length + 1).fill(0);
  for (const word of a) {
    const next = [0];
    b.forEach((other, j) => next.push(word === other ? row[j] + 1 : Math.max(row[j + 1], next[j])));
    row = next;
  }
  return row[b.length];
}

export function rougeL(words, references) {
  const common = references.map((one) => longestCommon(one, words));
  const precision = Math.max(...common.map((one) => one / words.length));
  const recall = Math.max(...common.map((one, i) => one / references[i].length));
  if (!precision || !recall) return 0;
  const beta = 1.2 ** 2;
  return 100 * (1 + beta) * precision * recall / (recall + beta * precision);
}

export const loadCounts = () => fetch(new URL("counts.json", import.meta.url)).then((answer) => answer.json());

// `counts`: in how many pictures of the `corpus` a group of words occurs.
export function cider(words, references, { counts, corpus }) {
  const vectors = (text) => [1, 2, 3, 4].map((n) => new Map([...groups(text, n)].map(([group, count]) =>
    [group, count * (Math.log(corpus) - Math.log(Math.max(1, counts[group] ?? 0)))])));
  const norm = (vector) => Math.sqrt(sum([...vector.values()].map((x) => x * x)));
  const own = vectors(words);
  // pycocoevalcap takes the number of pairs of words as a caption's length.
  const pairs = (text) => Math.max(0, text.length - 1);
  const scores = references.map((reference) => sum(vectors(reference).map((theirs, n) => {
    const scale = norm(own[n]) * norm(theirs);
    const product = sum([...own[n]].map(([group, value]) =>
      Math.min(value, theirs.get(group) ?? 0) * (theirs.get(group) ?? 0)));
    const penalty = Math.exp(-((pairs(words) - pairs(reference)) ** 2) / (2 * 6 ** 2));
    return (scale ? product / scale : 0) * penalty;
  })));
  return 100 * 10 * sum(scores) / 4 / references.length;
}
