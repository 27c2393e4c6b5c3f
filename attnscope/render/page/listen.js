"use strict";
// What keys, pointers and controls do; and the start of it all.

const KEYS = {
  ArrowLeft: () => openHead(state.row, state.head - 1),
  ArrowRight: () => openHead(state.row, state.head + 1),
  ArrowUp: () => openHead(state.row - 1, state.head),
  ArrowDown: () => openHead(state.row + 1, state.head),
  j: () => step(1),
  k: () => step(-1),
  t: () => tick(),
  l: () => changeMode(),
  s: () => restyle({ scale: { auto: "fixed", fixed: "row", row: "head", head: "auto" }[state.scale] }),
  f: () => showFew(!state.few),
  d: flip,
  p: () => save("png"),
  v: () => save("svg"),
  "+": () => zoom(1.4),
  "-": () => zoom(1 / 1.4),
  Escape: () => pin(null),
};
const ARROWS = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };

function pressed(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || !current || event.target.tagName === "SELECT") return;
  const inside = event.target.closest?.("#heads, #stage, #lined, #view, .text");
  const act = (inside && ({ heads: inHeads, stage: inMap, lined: inLines, view: inScene }[inside.id] ?? inText)(event))
    || KEYS[event.key];
  if (!act) return;
  event.preventDefault();
  act();
}

// In the overview the keys move over heads; Space ticks.
function inHeads(event) {
  if (event.key === " " || event.key === "Enter") return () => tick();
  if (!ARROWS[event.key]) return null;
  return async () => {
    await KEYS[event.key]();
    overview.cells[state.row][state.head].focus();
  };
}

// In the map they move from cell to cell; Enter chooses the token of the row, and asks why.
function inMap(event) {
  if (event.key === "Enter") return () => state.pointer && pin(state.pointer.row ?? 0, "query", state.pointer);
  if (!ARROWS[event.key]) return null;
  const [down, across] = ARROWS[event.key];
  return () => {
    const { rows, columns } = current, from = state.pointer ?? { row: -down, column: -across };
    const over = { row: Math.min(Math.max((from.row ?? 0) + down, 0), rows - 1),
      column: Math.min(Math.max((from.column ?? 0) + across, 0), columns - 1) };
    state.pointer = over;
    const at = showCell(over);
    drawPictures();
    showTip(at, over);
    say(element("tip").textContent);
  };
}

// In the lines they move from token to token, and to the other side.
function inLines(event) {
  if (event.key === "ArrowUp" || event.key === "ArrowDown") return () => step(event.key === "ArrowUp" ? -1 : 1);
  if (!ARROWS[event.key]) return null;
  return () => {
    const side = event.key === "ArrowLeft" ? "query" : "key";
    pin(Math.min(state.token ?? 0, (side === "query" ? current.rows : current.columns) - 1), side);
  };
}

// In the picture they move from part to part; Enter chooses one.
function inScene(event) {
  if (event.key === "Enter" || event.key === " ") return () => scene.over !== null && choosePart(scene.over);
  return ARROWS[event.key] ? () => movePart(ARROWS[event.key]) : null;
}

// In the text they move from token to token.
function inText(event) {
  const list = event.target.closest(".text"), options = list.querySelectorAll("[role=option]");
  const on = list.dir === "rtl" ? -1 : 1;
  const to = { ArrowLeft: -on, ArrowUp: -1, ArrowRight: on, ArrowDown: 1 }[event.key];
  const at = [...options].indexOf(event.target);
  const next = event.key === "Home" ? 0 : event.key === "End" ? options.length - 1
    : event.key === "Enter" || event.key === " " ? at : to ? Math.min(Math.max(at + to, 0), options.length - 1) : null;
  if (next === null) return null;
  return () => {
    const token = +options[next].dataset.at;
    pin(token, sideOf(token, list.dataset.side));
    options[next].focus();
  };
}

function hover(find) {
  return (event) => {
    const over = find(event);
    state.pointer = over;
    const pinned = state.token !== null && find === tokenAt;
    if (over) showTip({ x: event.clientX, y: event.clientY }, pinned ? pairOf(over) : over);
    else hideTip();
    soon();
  };
}

// Of the lines one token is pinned and the pointer is over another: both, where they are on different sides.
function pairOf({ row, column }) {
  return state.side === "query" ? { row: row ?? state.token, column } : { row, column: column ?? state.token };
}

function leave() {
  state.pointer = null;
  hideTip();
  soon();
}

function watch(canvas, find) {
  canvas.addEventListener("pointermove", hover(find));
  canvas.addEventListener("pointerdown", hover(find));
  canvas.addEventListener("pointerleave", (event) => {
    if (event.pointerType === "touch") return; // what a tap shows stays
    leave();
  });
  canvas.addEventListener("click", (event) => {
    const found = find(event);
    if (!found) return;
    if (found.row !== null) choose(found.row, "query", event, found, found.column === null ? null : found);
    else choose(found.column, "key", event, found);
  });
}

function choose(token, side, event, over, asked = null) {
  pin(token, side, asked);
  state.pointer = over;
  showTip({ x: event.clientX, y: event.clientY }, over);
  soon();
}

function listen() {
  const on = (id, name, act) => element(id).addEventListener(name, act);
  document.addEventListener("keydown", pressed);
  on("heads", "click", (event) => {
    const { row, head } = event.target.dataset;
    if (row === undefined) return;
    if (event.shiftKey || event.ctrlKey || event.metaKey) tick(+row, +head);
    else openHead(+row, +head);
  });
  on("heads", "pointermove", (event) => {
    const name = event.pointerType !== "touch" && event.target.dataset.row !== undefined && event.target.getAttribute("aria-label");
    if (name) putTip({ x: event.clientX, y: event.clientY }, name);
    else hideTip();
  });
  on("heads", "pointerleave", hideTip);
  on("reading", "click", (event) => {
    const one = event.target.closest("[role=option]");
    if (one) pin(+one.dataset.at, sideOf(+one.dataset.at, one.parentNode.dataset.side));
  });
  watch(element("picture"), cellAt);
  watch(element("strokes"), tokenAt);
  for (const id of ["stage", "lined"]) {
    on(id, "scroll", soon);
    on(id, "blur", leave);
  }
  window.addEventListener("scroll", hideTip, { passive: true });
  window.addEventListener("hashchange", followLink);
  on("kind", "change", (event) => openKind(+event.target.value));
  on("between", "change", (event) => lookBetween(event.target.value));
  on("few", "change", (event) => showFew(event.target.checked));
  on("mode", "change", (event) => changeMode(event.target.value));
  on("by", "change", () => {
    buildWorth();
    drawSide();
    drawThumbnails();
  });
  on("wide", "click", (event) => {
    const on = document.querySelector("main").classList.toggle("wide");
    event.target.setAttribute("aria-pressed", on);
    drawAll();
    showOpenCell();
  });
  on("scale", "change", (event) => restyle({ scale: event.target.value }));
  on("cmap", "change", (event) => restyle({ cmap: event.target.value }));
  on("theme", "click", flip);
  on("png", "click", () => save("png"));
  on("svg", "click", () => save("svg"));
  on("tick", "click", () => tick());
  on("whole", "click", tickLayer);
  on("clear", "click", tickNone);
  on("command", "focus", () => element("command").select());
  on("in", "click", () => zoom(1.4));
  on("out", "click", () => zoom(1 / 1.4));
  system.addEventListener("change", dress);
  new ResizeObserver(fitWidth).observe(document.body);
  const board = element("board"); // all heads fit a sheet of A4 or Letter
  window.addEventListener("beforeprint", () => { board.style.zoom = Math.min(1, 660 / board.offsetWidth); });
  window.addEventListener("afterprint", () => { board.style.zoom = ""; });
}

function start() {
  dress();
  element("title").textContent = PAGE.title;
  element("subtitle").textContent = PAGE.subtitle;
  element("notes").append(...PAGE.notes.map((note) => made("li", {}, note)));
  const options = (id, names) => element(id).append(...names.map(([text, value]) => new Option(text, value)));
  options("kind", PAGE.kinds.map(({ kind }, i) => [kind, i]));
  options("cmap", Object.keys(PAGE.cmaps).map((name) => [name, name]));
  element("cmap").value = state.cmap;
  const [described] = PAGE.kinds[0].layers.flatMap(({ about }) => about);
  options("by", (described?.[2] ?? []).map(([name]) => [name, name]));
  element("by").value = PAGE.by;
  element("kinds").hidden = PAGE.kinds.length === 1;
  buildWorth();
  listen();
  startScene();
  startColumns();
  wide = document.body.clientWidth;
  followLink();
  requestAnimationFrame(() => setTimeout(drawRest));
}

start();
