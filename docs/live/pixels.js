// Pictures as the model reads them: the same bytes as Pillow's resize gives.
const MOST_PIXELS = 24e6;       // of a picture that is read in full; a larger one is read smaller

const FILTERS = {
  bilinear: { support: 1, weight: (x) => Math.max(0, 1 - Math.abs(x)) },
  bicubic: { support: 2, weight: (x) => {
    const a = -0.5;
    x = Math.abs(x);
    if (x < 1) return ((a + 2) * x - (a + 3)) * x * x + 1;
    return x < 2 ? (((x - 5) * x + 8) * x - 4) * a : 0;
  } },
};
const ONE = 2 ** 22;            // Pillow's weights are whole numbers, this one is 1

// For each output pixel the first input pixel that counts, and the weights from there.
function weightsOf(length, start, end, size, filter) {
  const scale = (end - start) / size;
  const stretch = Math.max(scale, 1);
  const support = filter.support * stretch;
  return Array.from({ length: size }, (_, i) => {
    const centre = start + (i + 0.5) * scale;
    const first = Math.max(0, Math.trunc(centre - support + 0.5));
    const last = Math.min(length, Math.trunc(centre + support + 0.5));
    const raw = Array.from({ length: last - first }, (_, j) =>
      filter.weight((j + first - centre + 0.5) / stretch));
    const sum = raw.reduce((a, b) => a + b, 0);
    return { first, weights: raw.map((x) => Math.trunc(x / sum * ONE + (x < 0 ? -0.5 : 0.5))) };
  });
}

// One pass: `count` lines, whose pixels lie `step` apart, become lines of `weights.length` pixels.
function pass(source, weights, lines, step, lineStep, result, outStep, outLineStep) {
  for (let line = 0; line < lines; line++) {
    weights.forEach(({ first, weights: row }, i) => {
      for (let channel = 0; channel < 3; channel++) {
        let sum = ONE / 2;
        let place = line * lineStep + first * step + channel;
        for (const weight of row) {
          sum += source[place] * weight;
          place += step;
        }
        result[line * outLineStep + i * outStep + channel] =
          Math.max(0, Math.min(255, Math.floor(sum / ONE)));
      }
    });
  }
}

// Bytes (size, size, 3) of RGBA bytes.
export function resize({ data, width, height }, { size, resize: how, interpolation }) {
  const side = Math.min(width, height);
  const [w, h] = how === "crop" ? [side, side] : [width, height];
  const filter = FILTERS[interpolation];
  const columns = weightsOf(width, (width - w) / 2, (width + w) / 2, size, filter);
  const rows = weightsOf(height, (height - h) / 2, (height + h) / 2, size, filter);
  const narrow = new Uint8Array(height * size * 3);
  pass(data, columns, height, 4, 4 * width, narrow, 3, 3 * size);
  const pixels = new Uint8Array(size * size * 3);
  pass(narrow, rows, size, 3 * size, 3, pixels, 3 * size, 3);
  return pixels;
}

// A picture file as RGBA bytes, upright, on white; throws an Error that says what is wrong.
export async function decode(blob) {
  let bitmap;
  try {
    bitmap = await createImageBitmap(blob, { colorSpaceConversion: "none" });
  } catch {
    throw new Error("This file is no picture that the browser can read: try a JPEG or PNG");
  }
  const shrink = Math.min(1, Math.sqrt(MOST_PIXELS / (bitmap.width * bitmap.height)));
  const canvas = document.createElement("canvas");
  canvas.width = Math.max(1, Math.round(bitmap.width * shrink));
  canvas.height = Math.max(1, Math.round(bitmap.height * shrink));
  const context = canvas.getContext("2d", { willReadFrequently: true });
  context.fillStyle = "white";
  context.fillRect(0, 0, canvas.width, canvas.height);
  context.drawImage(bitmap, 0, 0, canvas.width, canvas.height);
  return { image: context.getImageData(0, 0, canvas.width, canvas.height), canvas };
}
