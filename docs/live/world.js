// Scenes of lesson 11 in the page: drawing them, their facts, and whether a caption is true.
const HERE = new URL(".", import.meta.url);
let promise;
export const loadWorld = () => promise ??= fetch(new URL("world.json", HERE))
  .then((answer) => answer.json()).then((tables) => new World(tables));

const FINE = 4;                 // a pixel is sampled at FINE x FINE points
const ORDINALS = ["first", "second", "third", "fourth"];
const MEANS = { crowded: " (five shapes or more)", sparse: " (two shapes or fewer)",
  colourful: " (four colours or more)", symmetric: " (left and right alike)",
  row: " (three or more side by side)", column: " (three or more below each other)" };
const PROPERTIES = ["size", "texture", "colour", "shape"];
const CONVEX = ["circle", "square", "triangle", "diamond"];
const STAR = [[0, -1000], [951, -309], [588, 809], [-588, 809], [-951, -309]];

// Which points (x, y) lie in a shape of radius r around the origin.
const COVERS = {
  circle: (x, y, r) => x * x + y * y <= r * r,
  square: () => true,
  triangle: (x, y, r) => 2 * Math.abs(x) <= y + r,
  diamond: (x, y, r) => Math.abs(x) + Math.abs(y) <= r,
  star: (x, y, r) => STAR.filter(([a, b]) => 10 * a * x + b * (10 * y - r) <= 3249 * r).length >= 4,
  cross: (x, y, r) => 3 * Math.min(Math.abs(x), Math.abs(y)) <= r,
};
export const covers = (shape, x, y, r) =>
  Math.max(Math.abs(x), Math.abs(y)) <= r && COVERS[shape](x, y, r);

const permutations = (items, count) => count === 0 ? [[]] : items.flatMap((item) =>
  permutations(items.filter((other) => other !== item), count - 1).map((rest) => [item, ...rest]));
const gap = (a, b) => Math.max(Math.abs(a.x - b.x), Math.abs(a.y - b.y)) - a.radius - b.radius;

export class World {
  constructor(tables) {
    Object.assign(this, tables);
    const [adjectives, nouns] = [{}, {}];
    for (const [name, words] of [["size", Object.keys(this.sizes)],
      ["texture", ["plain", "striped"]], ["colour", Object.keys(this.colours)]]) {
      words.forEach((word) => { adjectives[this.words[word]] = [name, word]; });
    }
    this.nouns.forEach(([shape, one, many]) => {
      nouns[one] = shape;
      nouns[many] = shape;
    });
    const counts = { a: 1, ...Object.fromEntries(
      Object.entries(this.numbers).map(([number, word]) => [word, Number(number)])) };
    this.lexicon = { adjectives, nouns, counts };
    const any = (table) => `(?:${Object.keys(table).join("|")})`;
    const slot = `${any(counts)}(?: ${any(adjectives)}){0,3} ${any(nouns)}`;
    this.patterns = this.forms.flatMap(([kind, word, forms]) => forms.map((form) => ({
      kind, word, form,
      pattern: new RegExp(`^${form.replaceAll(",", "").replace(/{(\w)}/g, `(?<$1>${slot})`)}$`),
    })));
  }

  // Bytes (size, size, 3), the same as `captionlab.scenes.render` draws.
  render(objects, size) {
    const picture = new Uint8Array(size * size * 3);
    picture.forEach((_, i) => { picture[i] = this.background[i % 3]; });
    for (const object of [...objects].sort((a, b) => b.radius - a.radius)) {
      this.paint(picture, size, object);
    }
    return picture;
  }

  paint(picture, size, { shape, colour, texture, x, y, radius }) {
    const unit = 2 * size * FINE;
    const ink = this.colours[colour];
    const target = ink[0] + ink[1] + ink[2] < 384 ? 255 : 0;
    const shade = ink.map((value) => Math.floor((value + target) / 2));
    const range = (centre) => [Math.floor((centre - radius) * size / this.world),
      Math.ceil((centre + radius) * size / this.world)];
    const points = (pixel, centre) => Array.from({ length: FINE }, (_, i) =>
      (2 * (pixel * FINE + i) + 1) * this.world - centre * unit);
    const [top, bottom] = range(y);
    const [left, right] = range(x);
    for (let row = top; row < bottom; row++) {
      for (let column = left; column < right; column++) {
        let covered = 0;
        let striped = 0;
        for (const py of points(row, y)) {
          const inStripe = texture === "striped"
            && ((Math.floor(py / (this.stripe * unit)) % 2) + 2) % 2 === 1;
          for (const px of points(column, x)) {
            if (covers(shape, px, py, radius * unit)) {
              covered++;
              striped += inStripe;
            }
          }
        }
        const place = 3 * (row * size + column);
        for (let i = 0; i < 3; i++) {
          const sum = picture[place + i] * (FINE * FINE - covered)
            + (covered - striped) * ink[i] + striped * shade[i];
          picture[place + i] = Math.floor((sum + FINE * FINE / 2) / (FINE * FINE));
        }
      }
    }
  }

  relation(word, a, b) {
    if (word === "left of") return a.x + a.radius <= b.x - b.radius;
    if (word === "above") return a.y + a.radius <= b.y - b.radius;
    if (word === "near") return gap(a, b) >= 0 && gap(a, b) <= this.near;
    const corners = [-a.radius, a.radius].flatMap((dx) => [-a.radius, a.radius].map((dy) =>
      [a.x - b.x + dx, a.y - b.y + dy]));
    return a.radius < b.radius && CONVEX.includes(b.shape)
      && corners.every(([x, y]) => covers(b.shape, x, y, b.radius));
  }

  sceneWord(word, objects) {
    if (word === "crowded") return objects.length >= 5;
    if (word === "sparse") return objects.length <= 2;
    if (word === "colourful") return new Set(objects.map(({ colour }) => colour)).size >= 4;
    if (word === "row" || word === "column") {
      const places = objects.map((one) => one[word === "row" ? "y" : "x"]);
      return objects.length > 2 && Math.max(...places) - Math.min(...places) <= 6
        && objects.every((a, i) => objects.slice(i + 1).every((b) => gap(a, b) >= 0));
    }
    if (word === "symmetric") {
      const sides = (sign) => objects.map((one) => JSON.stringify([sign * (2 * one.x - this.world) || 0,
        one.y, one.radius, ...PROPERTIES.map((name) => one[name])])).sort().join();
      return sides(1) === sides(-1);
    }
    const value = word.slice("all ".length);
    return PROPERTIES.some((name) => objects.every((one) => one[name] === value));
  }

  // The claims of an English caption, or null if it is no sentence of the world's grammar.
  parse(text) {
    const parts = (text.toLowerCase().match(/[\w-]+/g) ?? []).join(" ").split(" and ");
    const claims = [];
    while (parts.length) {
      // "a red circle and a blue square" is one clause with "and" inside: try two first.
      const length = [2, 1].find((count) => this.clause(parts.slice(0, count).join(" and ")));
      if (!length) return null;
      claims.push(this.clause(parts.splice(0, length).join(" and ")));
    }
    return claims;
  }

  clause(text) {
    for (const { kind, word, form, pattern } of this.patterns) {
      const match = pattern.exec(text);
      if (!match) continue;
      const slots = Object.keys(match.groups ?? {}).sort().map((name) => this.describe(match.groups[name]));
      const number = slots[0]?.number ?? 1;
      const said = form.replaceAll(",", "").replace(/{(\w)}/g, (_, name) =>
        this.phrase(slots["abc".indexOf(name)], kind === "count" ? number : 1));
      const fits = kind === "count" ? number > 1 : slots.every(({ shape }) => shape);
      if (fits && said === text) return { kind, word, slots };
    }
    return null;
  }

  describe(text) {
    const words = text.split(" ");
    const { adjectives, nouns, counts } = this.lexicon;
    const found = { number: counts[words[0]], shape: nouns[words.at(-1)] };
    words.slice(1, -1).forEach((word) => { found[adjectives[word][0]] = adjectives[word][1]; });
    return found;
  }

  phrase(slot, number) {
    const adjectives = PROPERTIES.slice(0, 3).filter((name) => slot[name]);
    const noun = this.nouns.find(([shape]) => shape === slot.shape)[number > 1 ? 2 : 1];
    return [number > 1 ? this.numbers[number] : "a",
      ...adjectives.map((name) => this.words[slot[name]]), noun].join(" ");
  }

  // The facts that a claim states, read as suits the scene best: [words, whether it holds].
  verify({ kind, word, slots }, objects) {
    const properties = (slot, object) => PROPERTIES.filter((name) => slot[name]).map((name) =>
      [slot[name], object?.[name] === slot[name]]);
    if (kind === "scene") return [[word, this.sceneWord(word, objects)]];
    if (kind === "count") {
      const group = objects.filter((one) => properties(slots[0], one).every(([, holds]) => holds));
      return [[this.numbers[slots[0].number], group.length === slots[0].number]];
    }
    const numbers = Array.from({ length: Math.max(objects.length, slots.length) }, (_, i) => i);
    const readings = permutations(numbers, slots.length).map((choice) => {
      const chosen = choice.map((number) => objects[number]);
      const facts = slots.flatMap((slot, i) => properties(slot, chosen[i]));
      if (kind === "object") return facts;
      const base = Object.keys(this.inverse).find((one) => this.inverse[one] === word && one !== word);
      const [a, b] = base ? [chosen[1], chosen[0]] : chosen;
      return [...facts, [word, Boolean(a && b) && this.relation(base ?? word, a, b)]];
    });
    // The cost of a reading: its false facts, then those that are not the relation.
    const cost = (reading) => reading.reduce((sum, [what, holds]) => sum
      + (holds ? 0 : 100 + (what !== word)), 0);
    return readings.reduce((best, one) => cost(one) < cost(best) ? one : best);
  }

  // For each claim its facts; null if the caption is no sentence of the grammar.
  check(text, objects) {
    return this.parse(text)?.map((claim) => this.verify(claim, objects)) ?? null;
  }

  // "true", or why it is not.
  verdict(text, objects) {
    const claims = this.check(text, objects);
    if (!claims) return "not true: no sentence of the scenes' grammar";
    const facts = claims.flat();
    const wrong = facts.flatMap(([word, holds], place) => {
      const same = facts.flatMap(([one], i) => one === word ? [i] : []);
      const which = same.length > 1 ? `the ${ORDINALS[same.indexOf(place)] ?? "last"} ` : "";
      return holds ? [] : [`${which}“${word}”${MEANS[word] ?? ""}`];
    });
    return wrong.length ? `not true: ${wrong.join(", ")}` : "true";
  }
}
