"use strict";
// What is open, and everything that changes it. Each change draws what depends on it, once a frame.

const state = { kind: 0, row: 0, head: 0, mode: "map", scale: "fixed", cmap: PAGE.cmap,
  token: null, side: "query", cell: null, pointer: null };
let current = null; // the open head: bytes, rows, columns, axes
const element = (id) => document.getElementById(id);

const layerNow = () => PAGE.kinds[state.kind].layers[state.row];
const headName = () => `L${layerNow().layer}H${state.head}`;

let asked = 0;
async function openHead(row, head) {
  const layers = PAGE.kinds[state.kind].layers;
  state.row = Math.min(Math.max(row, 0), layers.length - 1);
  state.head = Math.min(Math.max(head, 0), layerNow().heads - 1);
  const number = ++asked;
  const bytes = await headBytes(state.kind, layerNow(), state.head);
  if (number !== asked) return; // another head was chosen meanwhile
  const axes = PAGE.axes[layerNow().axes];
  const limit = (state.side === "query" ? axes.queries : axes.keys).length;
  if (state.token !== null && state.token >= limit) state.token = null;
  current = { bytes, axes, rows: axes.queries.length, columns: axes.keys.length };
  settleMap();
  drawAll();
  performance.mark("drawn");
  if (location.protocol !== "about:") // inside of a frame there is no address to be kept
    history.replaceState(null, "", `#${PAGE.kinds[state.kind].kind}-${headName()}`);
}

function drawAll() {
  element("name").textContent = `${headName()} · ${PAGE.kinds[state.kind].kind}`;
  element("proof").textContent = layerNow().proof;
  element("mode").textContent = state.mode === "map" ? "lines" : "map";
  element("zoom").hidden = state.mode !== "map";
  element("closed").hidden = !current.bytes.includes(CLOSED);
  element("high").textContent =
    state.scale === "head" ? shortly(largest(current.bytes)) : { fixed: "1", row: "largest of the row" }[state.scale];
  drawRamp();
  drawOverview();
  drawPicture();
  drawFocus();
}

function drawPicture() {
  if (state.mode === "map") drawMap();
  else drawLines();
}

function drawRamp() {
  const context = element("ramp").getContext("2d");
  const colours = palette(state.cmap);
  const image = context.createImageData(256, 1);
  new Uint32Array(image.data.buffer).set(colours);
  context.putImageData(image, 0, 0);
}

let waiting = false;
function soon() {
  if (waiting || !current) return;
  waiting = true;
  requestAnimationFrame(() => {
    waiting = false;
    drawPicture();
  });
}

function restyle(change) {
  Object.assign(state, change);
  element("scale").value = state.scale;
  settleOverview();
  settleMap();
  drawAll();
}

function pin(token, side = state.side) {
  state.token = token;
  state.side = side;
  drawPicture();
  drawFocus();
}

function point(event) {
  const found = state.mode === "map" ? cellAt(event) : tokenAt(event);
  const over = found && (found.row !== null || found.column !== null) ? found : null;
  state.pointer = over;
  element("value").textContent = over ? said(over) : "";
  soon();
}

// The two tokens under the pointer and the weight between them.
function said({ row, column }) {
  const { axes, bytes, columns } = current;
  const name = ([text, number]) => `\u2068${text}\u2069 ${number}`;
  if (row === null) return name(axes.keys[column]);
  if (column === null) return name(axes.queries[row]);
  const byte = bytes[row * columns + column];
  const weight = byte === CLOSED ? "masked" : WEIGHT[byte].toFixed(WEIGHT[byte] < 0.01 ? 5 : 3);
  return `${name(axes.queries[row])} → ${name(axes.keys[column])}  ${weight}`;
}

function zoom(factor) {
  const stage = element("stage"), before = map.cell;
  state.cell = Math.min(Math.max(before * factor, SMALLEST), WIDEST);
  drawMap();
  const grown = state.cell / before;
  stage.scrollTo(stage.scrollLeft * grown, stage.scrollTop * grown);
  soon();
}

function flip() {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
  drawAll();
}

function changeMode() {
  state.mode = state.mode === "map" ? "lines" : "map";
  state.pointer = null;
  drawAll();
}

const KEYS = {
  ArrowLeft: () => openHead(state.row, state.head - 1),
  ArrowRight: () => openHead(state.row, state.head + 1),
  ArrowUp: () => openHead(state.row - 1, state.head),
  ArrowDown: () => openHead(state.row + 1, state.head),
  j: () => step(1),
  k: () => step(-1),
  l: changeMode,
  s: () => restyle({ scale: { fixed: "row", row: "head", head: "fixed" }[state.scale] }),
  d: flip,
  "+": () => state.mode === "map" && zoom(1.4),
  "-": () => state.mode === "map" && zoom(1 / 1.4),
  Escape: () => pin(null),
};

function step(by) {
  const count = state.side === "query" ? current.rows : current.columns;
  pin(state.token === null ? 0 : (state.token + by + count) % count);
}

function listen() {
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.tagName === "SELECT") return;
    const act = KEYS[event.key];
    if (!act || !current) return;
    event.preventDefault();
    act();
  });
  element("grid").addEventListener("click", (event) => {
    const found = headAt(event);
    if (found) openHead(found.row, found.head);
  });
  const picture = element("picture");
  picture.addEventListener("pointermove", point);
  picture.addEventListener("pointerdown", point);
  picture.addEventListener("pointerleave", () => { state.pointer = null; element("value").textContent = ""; soon(); });
  picture.addEventListener("click", (event) => {
    const found = state.mode === "map" ? cellAt(event) : tokenAt(event);
    if (found?.row !== null && found?.row !== undefined) pin(found.row, "query");
    else if (found?.column !== null && found?.column !== undefined) pin(found.column, "key");
  });
  element("stage").addEventListener("scroll", soon);
  element("kind").addEventListener("change", (event) => openKind(+event.target.value));
  window.addEventListener("hashchange", followLink);
  element("scale").addEventListener("change", (event) => restyle({ scale: event.target.value }));
  element("cmap").addEventListener("change", (event) => restyle({ cmap: event.target.value }));
  element("mode").addEventListener("click", changeMode);
  element("theme").addEventListener("click", flip);
  element("in").addEventListener("click", () => zoom(1.4));
  element("out").addEventListener("click", () => zoom(1 / 1.4));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
  new ResizeObserver(() => current && drawAll()).observe(document.body);
}

// Open the head that the address names, as in #encoder-L3H5, or the first one.
function followLink() {
  const [, kind, layer, head] = decodeURIComponent(location.hash).match(/^#(\w+)-L(\d+)H(\d+)$/) ?? [];
  openKind(Math.max(PAGE.kinds.findIndex((one) => one.kind === kind), 0), +(layer ?? 0), +(head ?? 0));
}

function openKind(kind, layer = 0, head = 0) {
  state.kind = kind;
  element("kind").value = kind;
  settleOverview();
  openHead(PAGE.kinds[kind].layers.findIndex((one) => one.layer === layer), head);
}

function start() {
  element("title").textContent = PAGE.title;
  element("subtitle").textContent = PAGE.subtitle;
  for (const note of PAGE.notes) {
    const item = document.createElement("li");
    item.textContent = note;
    element("notes").append(item);
  }
  const options = (id, names) => element(id).append(...names.map(([text, value]) => new Option(text, value)));
  options("kind", PAGE.kinds.map(({ kind }, i) => [kind, i]));
  options("cmap", Object.keys(PAGE.cmaps).map((name) => [name, name]));
  element("cmap").value = state.cmap;
  element("kinds").hidden = PAGE.kinds.length === 1;
  listen();
  followLink();
}

start();
