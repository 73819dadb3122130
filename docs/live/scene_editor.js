// A scene whose shapes can be dragged, recoloured, resized, added and removed.
import { button, choice, h } from "./ui.js";

const STEP = 4;                 // of an arrow key, in units of the world
const MOST = 8;

const star = (r) => Array.from({ length: 10 }, (_, i) => {
  const distance = i % 2 ? 0.3819660 * r / Math.sin(2 * Math.PI / 5) : r / Math.sin(2 * Math.PI / 5);
  const angle = i * Math.PI / 5;
  return `${distance * Math.sin(angle)},${r / 10 - distance * Math.cos(angle)}`;
}).join(" ");
const third = (r) => r / 3;
const POINTS = {
  square: (r) => `${-r},${-r} ${r},${-r} ${r},${r} ${-r},${r}`,
  triangle: (r) => `0,${-r} ${r},${r} ${-r},${r}`,
  diamond: (r) => `0,${-r} ${r},0 0,${r} ${-r},0`,
  star,
  cross: (r) => [[-1, -3], [1, -3], [1, -1], [3, -1], [3, 1], [1, 1], [1, 3], [-1, 3], [-1, 1], [-3, 1],
    [-3, -1], [-1, -1]].map(([x, y]) => `${x * third(r)},${y * third(r)}`).join(" "),
};

export class SceneEditor {
  constructor(world, objects, onChange) {
    Object.assign(this, { world, objects: objects.map((one) => ({ ...one })), onChange, chosen: 0 });
    this.svg = h("svg", { viewBox: `0 0 ${world.world} ${world.world}`, role: "group",
      "aria-label": "The drawing: choose a shape, then drag it or use the arrow keys" });
    this.picture = h("div", { class: "live-picture live-scene" }, this.svg);
    const words = (table) => table.map((word) => [word, world.words[word] ?? word]);
    const field = (label, name, values) => choice(label, words(values), "", (value) =>
      this.change({ [name]: value }));
    this.fields = { colour: field("Colour", "colour", Object.keys(world.colours)),
      shape: field("Shape", "shape", world.shapes),
      size: field("Size", "size", Object.keys(world.sizes)),
      texture: field("Texture", "texture", ["plain", "striped"]) };
    this.add = button("Add a shape", () => this.insert());
    this.remove = button("Remove it", () => this.erase());
    this.controls = h("div", { class: "live-controls" }, ...Object.values(this.fields), this.add, this.remove);
    this.draw();
  }

  get current() {
    return this.objects[this.chosen];
  }

  change(values) {
    Object.assign(this.current, values);
    const one = this.current;
    if (values.size) {
      const [low, high] = this.world.sizes[values.size];
      one.radius = Math.floor((low + high) / 2);
    }
    for (const axis of ["x", "y"]) {
      one[axis] = Math.round(Math.max(one.radius, Math.min(this.world.world - one.radius, one[axis])));
    }
    this.draw();
    this.onChange(this.objects);
  }

  insert() {
    const spots = Array.from({ length: 36 }, (_, i) => [16 + 32 * (i % 6), 16 + 32 * Math.floor(i / 6)]);
    const isFree = ([x, y]) => this.objects.every((one) => Math.max(Math.abs(x - one.x), Math.abs(y - one.y))
      > one.radius + 15);
    const [x, y] = spots.find(isFree) ?? spots[0];
    this.objects.push({ shape: "circle", colour: "red", size: "small", texture: "plain", radius: 15, x, y });
    this.chosen = this.objects.length - 1;
    this.change({});
  }

  erase() {
    this.objects.splice(this.chosen, 1);
    this.chosen = Math.max(0, this.chosen - 1);
    this.change({});
  }

  replace(objects) {
    this.objects = objects.map((one) => ({ ...one }));
    this.chosen = 0;
    this.change({});
  }

  name(one) {
    const texture = one.texture === "striped" ? " striped" : "";
    return `${this.world.words[one.size]}${texture} ${one.colour} ${one.shape}`;
  }

  draw() {
    const focused = this.svg.contains(document.activeElement);
    const order = this.objects.map((_, i) => i)
      .sort((a, b) => this.objects[b].radius - this.objects[a].radius);
    this.svg.replaceChildren(...order.map((number) => this.shape(number)));
    for (const [name, field] of Object.entries(this.fields)) field.select.value = this.current[name];
    this.add.disabled = this.objects.length === MOST;
    this.add.textContent = this.add.disabled ? `${MOST} shapes at most` : "Add a shape";
    this.remove.disabled = this.objects.length === 1;
    if (focused) this.svg.querySelector("[aria-pressed=true]").focus();
  }

  shape(number) {
    const { shape, colour, texture, x, y, radius } = this.objects[number];
    const fill = `rgb(${this.world.colours[colour]})`;
    const outline = shape === "circle" ? h("circle", { r: radius, fill })
      : h("polygon", { points: POINTS[shape](radius), fill });
    const group = h("g", { tabindex: 0, role: "button", transform: `translate(${x} ${y})`,
      "aria-pressed": String(number === this.chosen), "aria-label": this.name(this.objects[number]),
      focus: () => this.choose(number), keydown: (event) => this.key(event),
      pointerdown: (event) => this.drag(event, number) }, outline);
    if (texture === "striped") group.append(this.stripes(outline, this.objects[number], number));
    return group;
  }

  stripes(outline, { colour, radius }, number) {
    const ink = this.world.colours[colour];
    const target = ink[0] + ink[1] + ink[2] < 384 ? 255 : 0;
    const id = `stripes-${Math.random().toString(36).slice(2)}-${number}`;
    const bands = outline.cloneNode();
    bands.setAttribute("fill", `url(#${id})`);
    const { stripe } = this.world;
    const shade = ink.map((value) => Math.floor((value + target) / 2));
    return h("g", {}, h("defs", {}, h("pattern", { id, width: 2 * radius, height: 2 * stripe,
      patternUnits: "userSpaceOnUse" }, h("rect", { y: stripe, width: 2 * radius, height: stripe,
      fill: `rgb(${shade})` }))), bands);
  }

  choose(number) {
    if (number === this.chosen) return;
    this.chosen = number;
    this.draw();
  }

  key(event) {
    const moves = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
    if (["Delete", "Backspace"].includes(event.key)) {
      if (this.objects.length > 1) this.erase();
      this.svg.querySelector("[aria-pressed=true]").focus();
    } else if (moves[event.key]) {
      const [dx, dy] = moves[event.key];
      this.change({ x: this.current.x + STEP * dx, y: this.current.y + STEP * dy });
    } else if (event.key !== " ") return;         // a space would scroll the page
    event.preventDefault();
  }

  drag(event, number) {
    event.preventDefault();
    this.choose(number);
    this.svg.querySelector("[aria-pressed=true]").focus();
    const scale = this.world.world / this.svg.getBoundingClientRect().width;
    const from = { x: this.current.x, y: this.current.y };
    const move = ({ clientX, clientY }) => this.change({ x: from.x + (clientX - event.clientX) * scale,
      y: from.y + (clientY - event.clientY) * scale });
    const stop = () => {
      removeEventListener("pointermove", move);
      removeEventListener("pointerup", stop);
      removeEventListener("pointercancel", stop);
    };
    addEventListener("pointermove", move);
    addEventListener("pointerup", stop);
    addEventListener("pointercancel", stop);
  }
}
