// An exported captioner in the page: the graphs run in onnxruntime-web, one thread, no server.
const HERE = new URL(".", import.meta.url);
const loaded = {};      // by file: a promise of its bytes; by model: a promise of its captioner

export const manifest = (() => {
  let promise;
  return () => promise ??= fetch(new URL("manifest.json", HERE)).then((answer) => answer.json());
})();

async function fetchBytes(file, onBytes) {
  const answer = await fetch(new URL(file, HERE));
  if (!answer.ok) throw new Error(`${file} is not on this server (${answer.status})`);
  const parts = [];
  const reader = answer.body.getReader();
  for (;;) {
    const { done, value } = await reader.read();
    if (done) break;
    parts.push(value);
    onBytes(value.length);
  }
  return new Uint8Array(await new Blob(parts).arrayBuffer());
}

// How many bytes `load` would still fetch.
export async function bytesToLoad(model) {
  const { sizes } = await manifest();
  const files = filesOf(model).filter((file) => !loaded[file]);
  return files.reduce((sum, file) => sum + sizes[file], 0);
}

const RUNTIME = ["ort.wasm.bundle.min.mjs", "ort-wasm-simd-threaded.wasm"];
const filesOf = (model) => [...RUNTIME, ...["captioner.json", "encoder.onnx", "step.onnx"].map(
  (name) => `${model}/${name}`)];

// Load a captioner once; `onProgress` gets the share that has arrived, from 0 to 1.
export function load(model, onProgress = () => {}) {
  loaded[model] ??= fetchCaptioner(model, onProgress).catch((error) => {
    delete loaded[model];
    throw error;
  });
  return loaded[model];
}

async function fetchCaptioner(model, onProgress) {
  const total = await bytesToLoad(model);
  let arrived = 0;
  const onBytes = (count) => {
    arrived += count;
    onProgress(Math.min(1, arrived / total));
  };
  const get = (file) => loaded[file] ??= file.endsWith(".mjs") ? import(new URL(file, HERE))
    : fetchBytes(file, onBytes);
  const files = filesOf(model);
  const [code, wasm, json, encoder, step] = await Promise.all(files.map(get)).catch((error) => {
    files.forEach((file) => delete loaded[file]);
    throw error;
  });
  code.env.wasm.numThreads = 1;
  code.env.wasm.wasmBinary = wasm.buffer;
  const options = { executionProviders: ["wasm"] };
  const spec = JSON.parse(new TextDecoder().decode(json));
  // One after the other: two sessions must not start the runtime at once.
  const encoderSession = await code.InferenceSession.create(encoder, options);
  const stepSession = await code.InferenceSession.create(step, options);
  return new Captioner(spec, encoderSession, stepSession, code.Tensor);
}

// Rows of a tensor, in this order; repeats are allowed.
function takeRows(Tensor, x, rows) {
  const size = x.data.length / x.dims[0];
  const data = new Float32Array(size * rows.length);
  rows.forEach((row, i) => data.set(x.data.subarray(row * size, (row + 1) * size), i * size));
  return new Tensor("float32", data, [rows.length, ...x.dims.slice(1)]);
}

export class Captioner {
  constructor(spec, encoder, step, Tensor) {
    Object.assign(this, { spec, encoder, stepSession: step, Tensor });
    this.words = spec.vocabulary;
    this.ids = new Map(this.words.map((word, id) => [word, id]));
    const { outputs } = spec.encoder;
    this.positions = outputs[0].shape[2];           // N of (rows, heads, N, K)
    this.heads = outputs[0].shape[1];
    this.layers = outputs.length / 2;
    this.off = [];      // heads that are switched off, [name of the switch, head] each
  }

  // The memory of one picture, by name, from bytes (size, size, 3); `isStrange` tells of it, too.
  async encode(pixels) {
    const { size, mean, std } = this.spec.preprocess;
    const data = new Float32Array(3 * size * size);
    for (let channel = 0; channel < 3; channel++) {
      const centre = Math.fround(Math.fround(mean[channel]) * 255);
      const scale = Math.fround(Math.fround(std[channel]) * 255);
      for (let i = 0; i < size * size; i++) {
        data[channel * size * size + i] = Math.fround(pixels[3 * i + channel] - centre) / scale;
      }
    }
    const { similarity, ...memory } = await this.encoder.run({
      images: new this.Tensor("float32", data, [1, 3, size, size]) });
    this.isStrange = similarity !== undefined && similarity.data[0] < this.spec.novelty;
    return memory;
  }

  start(memory) {
    const state = {};
    for (const { name, shape } of this.spec.step.state) {
      const sides = shape.map((side) => ({ rows: 1, length: 0 })[side] ?? side);
      const data = new Float32Array(sides.reduce((a, b) => a * b));
      this.off.filter(([one]) => one === name).forEach(([, head]) => { data[head] = 1; });
      state[name] = new this.Tensor("float32", data, sides);
    }
    return { memory, rows: 1, state };
  }

  reorder(now, rows) {
    const take = (tensors) => Object.fromEntries(Object.entries(tensors).map(
      ([name, x]) => [name, x.data.length ? takeRows(this.Tensor, x, rows) : x]));
    const memory = rows.length === now.rows ? now.memory : take(now.memory);
    return { memory, rows: rows.length, state: take(now.state) };
  }

  // Read one token of each row: log-probabilities and attention of each row, and what follows.
  async step(now, tokens) {
    const ids = new this.Tensor("int64", BigInt64Array.from(tokens, BigInt), [tokens.length]);
    const out = await this.stepSession.run({ tokens: ids, ...now.memory, ...now.state });
    const state = Object.fromEntries(Object.keys(now.state).map((name) => [name, out[`new_${name}`]]));
    const rowsOf = (x) => {
      const size = x.data.length / tokens.length;
      return Array.from(tokens, (_, row) => x.data.slice(row * size, (row + 1) * size));
    };
    const logProbs = rowsOf(out.log_probs);
    logProbs.forEach((row) => this.spec.suppress_tokens.forEach((id) => { row[id] = -Infinity; }));
    return { logProbs, attention: rowsOf(out.attention), next: { ...now, state } };
  }

  // What the model computes before each word of a caption: ids with eos at the end.
  async read(memory, ids) {
    const steps = [];
    let now = this.start(memory);
    let token = this.spec.bos;
    for (const id of ids) {
      const { logProbs, attention, next } = await this.step(now, [token]);
      steps.push({ logProbs: logProbs[0], attention: attention[0] });
      now = next;
      token = id;
    }
    return { ids, words: ids.map((id) => this.words[id]), steps };
  }

  // Write word after word; `choose` picks an id from log-probabilities, the likeliest by default.
  async write(memory, choose = argmax) {
    const trace = { ids: [], words: [], steps: [] };
    let now = this.start(memory);
    let token = this.spec.bos;
    while (trace.ids.length < this.spec.max_length && token !== this.spec.eos) {
      const { logProbs, attention, next } = await this.step(now, [token]);
      now = next;
      token = choose(logProbs[0]);
      trace.ids.push(token);
      trace.words.push(this.words[token]);
      trace.steps.push({ logProbs: logProbs[0], attention: attention[0] });
    }
    return trace;
  }

  // Beam search as in lesson 22. `tree` lists every kept continuation with its parent.
  async beam(memory, width, lengthPenalty = 0) {
    const { eos, bos, max_length: maxLength } = this.spec;
    const score = (total, length) => total / length ** lengthPenalty;
    const tree = [];
    let best = { score: -Infinity, node: null };
    let beams = [{ id: bos, total: 0, node: null }];
    let now = this.start(memory);
    for (let length = 1; length <= maxLength && beams.length; length++) {
      const { logProbs, next } = await this.step(now, beams.map((beam) => beam.id));
      const found = beams.flatMap(({ total, node }, row) => top(logProbs[row], 2 * width).map(
        ([id, logProb]) => ({ id, logProb, total: total + logProb, parent: node, row, length })));
      found.sort((a, b) => b.total - a.total);
      found.slice(0, width).filter(({ id }) => id === eos).forEach((node) => {
        tree.push(node);
        const value = score(node.total, length);
        if (value > best.score) best = { score: value, node };
      });
      const kept = found.slice(0, 2 * width).filter(({ id }) => id !== eos).slice(0, width);
      tree.push(...kept);
      beams = kept.map((node) => ({ ...node, node }));
      const bound = Math.max(...[length + 1, maxLength].map((one) => score(kept[0].total, one)));
      if (bound <= best.score) break;
      now = this.reorder(next, kept.map(({ row }) => row));
    }
    const nodes = [];
    for (let node = best.node ?? beams[0].node; node; node = node.parent) nodes.unshift(node);
    return { ids: nodes.map(({ id }) => id), total: nodes.at(-1).total, nodes, tree };
  }

  text(ids) {
    return ids.filter((id) => id !== this.spec.eos).map((id) => this.words[id]).join(" ");
  }
}

export function argmax(values) {
  let best = 0;
  values.forEach((value, i) => { if (value > values[best]) best = i; });
  return best;
}

// The k largest values with their places, largest first.
export function top(values, k) {
  const order = Array.from(values.keys()).filter((i) => values[i] > -Infinity);
  return order.sort((a, b) => values[b] - values[a]).slice(0, k).map((i) => [i, values[i]]);
}

// The probabilities from which a word is drawn: temperature, then top-k, then top-p.
export function narrow(logProbs, { temperature = 1, topK = Infinity, topP = 1 }) {
  const order = top(logProbs, Math.min(topK, logProbs.length));
  const largest = order[0][1];
  const weights = order.map(([id, value]) => [id, Math.exp((value - largest) / temperature)]);
  const normalise = (pairs) => {
    const sum = pairs.reduce((total, [, weight]) => total + weight, 0);
    return pairs.map(([id, weight]) => [id, weight / sum]);
  };
  const kept = [];
  let covered = 0;
  for (const pair of normalise(weights)) {
    if (covered >= topP) break;             // the smallest set that covers p
    kept.push(pair);
    covered += pair[1];
  }
  return normalise(kept);
}

// A generator of numbers from 0 to 1 (mulberry32): the same seed gives the same caption.
export function random(seed) {
  let a = seed >>> 0;
  return () => {
    a = (a + 0x6D2B79F5) >>> 0;
    let t = Math.imul(a ^ (a >>> 15), 1 | a);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 2 ** 32;
  };
}

export function sampler(options) {
  const next = random(options.seed);
  return (logProbs) => {
    let point = next();
    const pairs = narrow(logProbs, options);
    for (const [id, probability] of pairs) {
      point -= probability;
      if (point < 0) return id;
    }
    return pairs.at(-1)[0];
  };
}
