"use strict";
// The page's data: labels and thumbnails at once, the weights of a head when it is opened.

const PAGE = JSON.parse(document.getElementById("page").textContent);
const CLOSED = 255, LARGEST = 254, KEPT = 24;

// The byte of the weight 0: the middle one where weights may be negative.
const ZERO = PAGE.signed ? LARGEST / 2 : 0, STEPS = LARGEST - ZERO;

// byte -> weight, and without its sign; CLOSED is a masked cell
const WEIGHT = Float32Array.from({ length: 256 }, (_, byte) =>
  Math.sign(byte - ZERO) * PAGE.top * (Math.abs(byte - ZERO) / STEPS) ** PAGE.power);
const SIZE = WEIGHT.map(Math.abs);

// The nearest byte of a weight.
const byteOf = (weight) =>
  ZERO + Math.sign(weight) * Math.round(STEPS * Math.min(Math.abs(weight) / PAGE.top, 1) ** (1 / PAGE.power));

// Where a weight stands on a colour map whose end is `high`: 0 to 255, the weight 0 in the middle of a signed one.
function toneOf(weight, high) {
  const part = Math.max(-1, Math.min(weight / high, 1));
  return Math.round(255 * (PAGE.signed ? (part + 1) / 2 : part));
}

const FROM = PAGE.signed ? "±" : "0 to "; // before the end of a scale

// A function that works once for each choice of what it is given.
function remembered(work) {
  const known = new Map();
  return (...given) => {
    const key = given.join();
    if (!known.has(key)) known.set(key, work(...given));
    return known.get(key);
  };
}

function bytesOf(base64) {
  const text = atob(base64);
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
  return bytes;
}

// Of a pair of texts, which one attends to which: the axes with the rows and the columns of the others left out, and
// where these begin and end.
const BETWEEN = { AA: [0, 0], AB: [0, 1], BA: [1, 0], BB: [1, 1] };
const axesBetween = remembered((number, between) => {
  const whole = PAGE.axes[number], { queries, keys, second } = whole;
  if (second === null || !between) return { axes: whole, down: [0, queries.length], across: [0, keys.length] };
  const [down, across] = BETWEEN[between].map((text) => (text ? [second, queries.length] : [0, second]));
  const axes = { ...whole, queries: queries.slice(...down), keys: keys.slice(...across), square: between[0] === between[1] };
  return { axes, down, across };
});

function bytesBetween(bytes, columns, down, across) {
  if (down[1] * columns === bytes.length && across[1] === columns && !down[0] && !across[0]) return bytes;
  const wide = across[1] - across[0], part = new Uint8Array((down[1] - down[0]) * wide);
  for (let row = down[0]; row < down[1]; row++)
    part.set(bytes.subarray(row * columns + across[0], row * columns + across[1]), (row - down[0]) * wide);
  return part;
}

// Read piece by piece rather than through a Response, whose turns would wait while the page still arrives.
async function inflated(bytes, size) {
  const stream = new DecompressionStream("deflate-raw"), writer = stream.writable.getWriter();
  Promise.all([writer.write(bytes), writer.close()]).catch(() => null); // what is wrong, the reader says
  const whole = new Uint8Array(size);
  let filled = 0;
  for await (const piece of stream.readable) {
    whole.set(piece, filled);
    filled += piece.length;
  }
  return whole;
}

const opened = new Map(); // element id -> promise of bytes, the latest last

// The bytes of one head, row after row: [query, key].
function headBytes(kind, layer, head) {
  const id = `w${kind}-${layer.layer}-${head}`;
  let promise = opened.get(id);
  opened.delete(id);
  promise ??= readyBytes(id) ?? decoded(id, PAGE.axes[layer.axes]);
  opened.set(id, promise);
  if (opened.size > KEPT) opened.delete(opened.keys().next().value);
  return promise;
}

// The head that the page opens at is not packed, so that it is drawn before the rest of the page arrives.
function readyBytes(id) {
  const element = document.getElementById(id);
  return element?.type === "text/bytes" ? bytesOf(element.textContent) : null;
}

// The text of one head. All but the first stand last in the page, and many take a while to arrive: the page is
// drawn before they are all there, and a head is whole once something stands behind it.
async function stored(id) {
  const found = () => document.getElementById(id);
  while (document.readyState === "loading" && !found()?.nextElementSibling)
    await new Promise((done) => setTimeout(done));
  return found().textContent;
}

async function decoded(id, axes) {
  const columns = axes.keys.length;
  const bytes = await inflated(bytesOf(await stored(id)), 1 + axes.queries.length * columns);
  const codes = bytes.subarray(1);
  if (bytes[0] === 1) for (let i = columns; i < codes.length; i++) codes[i] += codes[i - columns];
  return codes;
}

// Colours of a map as 256 packed pixels (little-endian RGBA).
const palette = remembered((name) => {
  const hex = PAGE.cmaps[name];
  return Uint32Array.from({ length: 256 }, (_, i) => {
    const rgb = parseInt(hex.slice(6 * i, 6 * i + 6), 16);
    return (255 << 24) | ((rgb & 255) << 16) | (rgb & 0xff00) | (rgb >> 16);
  });
});

// byte -> pixel for weights up to `high`, on the map of that name; closed cells stay clear.
const pixelsOf = remembered((name, high) => {
  const colours = palette(name), pixels = new Uint32Array(256);
  for (let byte = 0; byte <= LARGEST; byte++)
    pixels[byte] = colours[toneOf(WEIGHT[byte], high)];
  return pixels;
});
