"use strict";
// What is open, and everything that changes it. Each change draws what depends on it, once a frame.

const state = { kind: 0, row: 0, head: 0, mode: "map", scale: "auto", cmap: PAGE.cmap,
  between: "", few: true, token: null, side: "query", asked: null, cell: null, pointer: null };
let current = null; // the open head: bytes, rows, columns, axes, and the scale that is shown

const layerNow = () => PAGE.kinds[state.kind].layers[state.row];
const nameOf = ({ row, head }) => `L${PAGE.kinds[state.kind].layers[row].layer}H${head}`;
const headName = () => nameOf(state);

// Whether the model wrote a token itself.
const wrote = ([, number]) => PAGE.kinds[state.kind].kind === "decoder" && PAGE.written !== null && number >= PAGE.written;

// A head of the kind that is open: its axes, and its bytes between the texts that are chosen.
async function readHead(row, head) {
  const { kind, between } = state, layer = PAGE.kinds[kind].layers[row];
  const { axes, down, across } = axesBetween(layer.axes, between);
  const bytes = bytesBetween(await headBytes(kind, layer, head), PAGE.axes[layer.axes].keys.length, down, across);
  return { kind, row, head, axes, rows: axes.queries.length, columns: axes.keys.length, bytes };
}

let opening = true; // the page opens with the map of one head; everything else follows a frame later
let asked = 0;
async function openHead(row, head) {
  const layers = PAGE.kinds[state.kind].layers;
  state.row = Math.min(Math.max(row, 0), layers.length - 1);
  state.head = Math.min(Math.max(head, 0), layerNow().heads - 1);
  const number = ++asked;
  const found = await readHead(state.row, state.head);
  if (number !== asked) return; // another head was chosen meanwhile
  current = found;
  const { axes } = current;
  if (compared.length && compared[0].axes !== axes) compared.length = 0; // of other tokens
  const limit = (state.side === "query" ? axes.queries : axes.keys).length;
  if (state.token !== null && state.token >= limit) state.token = null;
  state.pointer = null;
  settleMap();
  drawHead();
  if (!opening) showOpenCell();
  say([headName(), ...(layerNow().about[state.head] ?? []).slice(0, 2)].filter(Boolean).join(", "));
  performance.mark("drawn");
  if (location.protocol !== "about:") // inside of a frame there is no address to be kept
    history.replaceState(null, "", `#${PAGE.kinds[state.kind].kind}-${headName()}`);
}

function drawThumbnails() {
  settleOverview();
  drawOverview();
  showOpenCell();
}

function drawRest() {
  if (!current) return void setTimeout(drawRest, 10); // the head that a link names is still being unpacked
  opening = false;
  drawThumbnails();
  drawSide();
  fitWidth();
}

let wide = 0; // of the page, as everything was drawn in it
function fitWidth() {
  if (opening || wide === document.body.clientWidth) return;
  wide = document.body.clientWidth;
  drawAll();
}

function drawAll() {
  if (!opening) drawOverview();
  drawHead();
}

function drawHead() {
  const kind = PAGE.kinds[state.kind].kind;
  element("name").textContent = `${headName()} · ${kind}`;
  element("stage").setAttribute("aria-label", `map of ${headName()}: ${PAGE.sentence}`);
  element("lined").setAttribute("aria-label", `lines of ${drawnHeads().map(nameOf).join(", ")}`);
  element("proof").textContent = layerNow().proof;
  element("mode").value = state.mode;
  element("pictures").className = state.mode === "both" && hasRoom() ? "beside" : "";
  element("stage").hidden = state.mode === "lines";
  element("lined").hidden = state.mode === "map";
  markCells();
  drawChips();
  drawPictures();
  if (!opening) drawSide();
}

function drawPictures() {
  if (state.mode !== "lines") drawMap();
  if (state.mode !== "map") drawLines();
  drawLegend();
}

let waiting = false;
function soon() {
  if (waiting || !current) return;
  waiting = true;
  requestAnimationFrame(() => {
    waiting = false;
    drawPictures();
  });
}

function restyle(change) {
  Object.assign(state, change);
  element("scale").value = state.scale;
  for (const each of compared) delete each.scale, delete each.full;
  settleOverview();
  settleMap();
  drawAll();
}

// Of a pair of texts, show one that attends to one alone; what is ticked stays.
async function lookBetween(between) {
  const ticked = compared.splice(0);
  Object.assign(state, { between, token: null });
  for (const each of ticked) Object.assign(each, await readHead(each.row, each.head), { scale: null, full: null });
  if (state.between === between) compared.push(...ticked);
  await openHead(state.row, state.head);
}

function pin(token, side = state.side, asked = null) {
  layered.over = null;
  state.token = token;
  state.asked = asked && { ...asked, axes: current.axes };
  state.side = side;
  state.pointer = null;
  hideTip();
  if (token !== null) showToken();
  drawPictures();
  drawSide();
  if (token !== null) say([element("token").textContent, ...[...document.querySelectorAll("#lists ol")].map((list, i) =>
    `${document.querySelectorAll("#lists h3")[i].textContent} ${list.querySelector("button")?.textContent ?? "nothing"}`)].join(", "));
}

// Scroll the pictures so that the pinned token is in view.
function showToken() {
  const into = (stage, start, size, edge, along = "Top") => {
    const room = stage[along === "Top" ? "clientHeight" : "clientWidth"] - edge, before = stage[`scroll${along}`];
    if (start < before || start + size > before + room) stage[`scroll${along}`] = start - room / 2;
  };
  if (state.mode !== "map") into(element("lined"), state.token * LINE, LINE, 0);
  if (state.mode === "lines") return;
  if (state.side === "query") into(element("stage"), state.token * map.tall, map.tall, map.top);
  else into(element("stage"), state.token * map.cell, map.cell, map.left, "Left");
}

function step(by) {
  const count = state.side === "query" ? current.rows : current.columns;
  pin(state.token === null ? 0 : (state.token + by + count) % count);
}

function zoom(factor) {
  if (state.mode === "lines") return;
  const stage = element("stage"), before = map.cell, tall = map.tall;
  state.cell = Math.min(Math.max(before * factor, SMALLEST), WIDEST);
  drawMap();
  stage.scrollTo((stage.scrollLeft * map.cell) / before, (stage.scrollTop * map.tall) / tall);
  soon();
}

const system = matchMedia("(prefers-color-scheme: dark)");
let chosenTheme = null;
function dress() {
  document.documentElement.dataset.theme = chosenTheme ?? (system.matches ? "dark" : "light");
  if (current) drawAll();
}

function flip() {
  chosenTheme = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
  dress();
}

const BESIDE = 24; // columns of a map that has room beside the lines
const hasRoom = () => innerWidth > 1080 && current.columns <= BESIDE;
const MODES = ["map", "lines", "both"];
function changeMode(mode = MODES[(MODES.indexOf(state.mode) + 1) % MODES.length]) {
  state.mode = mode;
  state.pointer = null;
  hideTip();
  drawHead();
}

// For those who listen: one sentence on what has changed.
function say(sentence) {
  element("live").textContent = sentence;
}

// What is under the pointer, beside it: two tokens and the weight between them, of each head that is drawn.
function showTip(at, over) {
  const { row, column } = over, { axes, bytes, columns } = current;
  const label = (place) => [isolated(place[0]), behind(place)];
  const written = (byte) => (byte === CLOSED ? "masked" : closely(WEIGHT[byte]));
  const said = row === null ? label(axes.keys[column]) : label(axes.queries[row]);
  if (row !== null && column !== null) {
    said.push(" → ", ...label(axes.keys[column]));
    if (compared.some((each) => each.on)) {
      const shares = made("div");
      for (const each of sharesOf(row, column)) {
        const swatch = made("i", { class: "own" });
        swatch.style.setProperty("--own", `var(--head${each.slot})`);
        shares.append(swatch, nameOf(each), made("span", {}, written(each.byte)));
      }
      said.push(shares);
    } else said.push(`  ${written(bytes[row * columns + column])}`);
  }
  putTip(at, ...said);
}

function putTip(at, ...said) {
  const tip = element("tip");
  tip.replaceChildren(...said);
  tip.hidden = false;
  const { width, height } = tip.getBoundingClientRect();
  const left = Math.max(4, Math.min(at.x + 14, innerWidth - width - 4));
  const top = at.y - height - 12 < 4 ? Math.min(at.y + 18, innerHeight - height - 4) : at.y - height - 12;
  Object.assign(tip.style, { left: `${left}px`, top: `${top}px` });
}

function hideTip() {
  element("tip").hidden = true;
}

// Open the head that the address names, as in #encoder-L3H5, or the one most worth a look.
function followLink() {
  const [, kind, layer, head] = decodeURIComponent(location.hash).match(/^#(\w+)-L(\d+)H(\d+)$/) ?? [];
  const named = PAGE.kinds.findIndex((one) => one.kind === kind);
  if (named >= 0) return openKind(named, +layer, +head);
  openKind(...(PAGE.worth[0] ?? [0]));
}

function openKind(kind, layer = PAGE.kinds[kind].layers[0].layer, head = 0) {
  if (state.kind !== kind || !overview.layers.length) {
    state.kind = kind;
    compared.length = 0;
    element("texts").hidden = PAGE.kinds[kind].layers.every(({ axes }) => PAGE.axes[axes].second === null);
    buildOverview();
    if (!opening) drawThumbnails();
  }
  element("kind").value = kind;
  openHead(PAGE.kinds[kind].layers.findIndex((one) => one.layer === layer), head);
}
