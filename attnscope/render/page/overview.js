"use strict";
// Every head as a thumbnail: all are drawn on one canvas, and over it lies a grid of cells that can be reached.

const overview = { pitch: 0, gap: 0, left: 30, top: 18, layers: [], heads: 0, pictures: [], cells: [] };
const SMALL_PITCH = 7, TOUCHED_PITCH = 24, LARGE_PITCH = 84;

// The grid of cells for one kind of attention.
function buildOverview() {
  overview.layers = PAGE.kinds[state.kind].layers;
  overview.heads = Math.max(...overview.layers.map((layer) => layer.heads));
  const row = (...inside) => made("div", { role: "row" }, ...inside);
  const heading = (head) => made("span", { role: "columnheader", "aria-colindex": head + 2 });
  const cell = (layer, at) => (_, head) => {
    const role = layer.about[head]?.[0] || "";
    const sentence = layer.about[head]?.[1] || "";
    return made("span", { role: "gridcell", tabindex: -1, "aria-colindex": head + 2, "aria-selected": false,
      "aria-label": [`L${layer.layer}H${head}`, role, sentence].filter(Boolean).join(", "),
      "data-row": at, "data-head": head });
  };
  overview.columns = Array.from({ length: overview.heads }, (_, head) => heading(head));
  overview.names = overview.layers.map((layer) => made("span", { role: "rowheader", "aria-colindex": 1 }, `L${layer.layer}`));
  overview.cells = overview.layers.map((layer, at) => Array.from({ length: layer.heads }, cell(layer, at)));
  element("heads").setAttribute("aria-colcount", overview.heads + 1);
  element("heads").replaceChildren(row(...overview.columns),
    ...overview.layers.map((_, at) => row(overview.names[at], ...overview.cells[at])));
}

// The bytes of a layer's thumbnails, one head after the other.
const thumbnails = (layer) => (layer.bytes ??= bytesOf(layer.small[2]));

// The next drawing colours every thumbnail anew.
function settleOverview() {
  overview.pictures = [];
}

// For each of so many equal parts of a side, the cells in it, each with its share that lies there.
const overlapsOf = remembered((cells, parts) => Array.from({ length: parts }, (_, part) => {
  const begin = (part * cells) / parts, end = ((part + 1) * cells) / parts, found = [];
  for (let cell = Math.floor(begin); cell < end; cell++)
    found.push({ cell, share: Math.min(end, cell + 1) - Math.max(begin, cell) });
  return found.filter(({ share }) => share > 1e-6);
}));

// A layer's thumbnails on at most `most` rows and columns, keys summed and rows averaged: were the colours
// averaged instead, attention on many keys would be next to black.
function pooled(layer, most) {
  const [rows, columns] = layer.small, bytes = thumbnails(layer);
  const down = overlapsOf(rows, Math.min(rows, most)), across = overlapsOf(columns, Math.min(columns, most));
  const small = { bytes, rows: down.length, columns: across.length };
  if (small.rows === rows && small.columns === columns) return small;
  small.bytes = new Uint8Array(layer.heads * down.length * across.length);
  let at = 0;
  for (let head = 0; head < layer.heads; head++)
    for (const queries of down)
      for (const keys of across) {
        let sum = 0, open = false;
        for (const query of queries)
          for (const key of keys) {
            const byte = bytes[(head * rows + query.cell) * columns + key.cell];
            if (byte === CLOSED) continue;
            sum += WEIGHT[byte] * query.share * key.share; // a pair of values would be made anew a million times
            open = true;
          }
        small.bytes[at++] = open ? byteOf((sum * down.length) / rows) : CLOSED;
      }
  return small;
}

const headOf = ({ bytes, rows, columns }, head) => ({
  bytes: bytes.subarray(head * rows * columns, (head + 1) * rows * columns), rows, columns });

function colourOverview(most) {
  const smalls = overview.layers.map((layer) => pooled(layer, most));
  const scale = state.scale === "auto" && PAGE.signed ? "head" : state.scale;
  const every = (small, layer) => Array.from({ length: layer.heads }, (_, head) => headOf(small, head));
  const heads = smalls.flatMap((small, at) => every(small, overview.layers[at]));
  const few = ({ rows, columns }, { axes }) => rows !== PAGE.axes[axes].queries.length || columns !== PAGE.axes[axes].keys.length;
  const bright = smalls.some((small, at) => few(small, overview.layers[at])) ? PAGE.bright_pooled : PAGE.bright;
  const end = scale === "auto" ? fullColour(heads, false, bright) : scale === "fixed" ? 1 : null;
  overview.pictures = overview.layers.map((layer, at) => {
    const look = Array.from({ length: layer.heads }, (_, head) => rowPixels(headOf(smalls[at], head), scale, end));
    const { bytes, rows, columns } = smalls[at];
    return cells(bytes, layer.heads * rows, columns, look.flat()); // the heads of a layer stand below each other
  });
  overview.most = most;
  const own = { row: "each row's largest weight", head: "each head's largest weight" };
  const aside = scale === "head" && smalls.some((small) => choosingRows(headOf(small, 0)).length < small.rows);
  const where = aside ? " in rows with many unmasked keys" : "";
  const full = own[scale] ?? `${end}${heads.some((head) => exceeds(head, end)) ? " or more" : ""}`;
  element("shades").textContent = `Colour scale: ${FROM}${full}${where}.`;
}

function drawOverview() {
  const room = element("shelf").clientWidth - 8 - overview.left;
  const least = matchMedia("(pointer: coarse)").matches ? TOUCHED_PITCH : SMALL_PITCH;
  const pitch = Math.min(Math.max(room / overview.heads, least), LARGE_PITCH);
  const gap = Math.max(1, pitch * 0.08), side = pitch - gap;
  Object.assign(overview, { pitch, gap });
  const canvas = element("grid");
  const context = sized(canvas, overview.left + pitch * overview.heads, overview.top + pitch * overview.layers.length);
  const by = cellsBy(side);
  if (by) {
    settleOverview();
    drawCells(context, by, pitch, side);
    return placeCells(pitch, side);
  }
  const hatch = hatching(context), most = Math.max(1, Math.floor(side * (window.devicePixelRatio || 1)));
  if (!overview.pictures.length || overview.most !== most) colourOverview(most);
  context.imageSmoothingEnabled = false;
  overview.layers.forEach((layer, row) => {
    const y = overview.top + pitch * row, picture = overview.pictures[row];
    const rows = picture.height / layer.heads;
    for (let head = 0; head < layer.heads; head++) {
      const x = overview.left + pitch * head;
      context.fillStyle = hatch;
      context.fillRect(x, y, side, side);
      context.drawImage(picture, 0, head * rows, picture.width, rows, x, y, side, side);
    }
  });
  placeCells(pitch, side);
}

function placeCells(pitch, side) {
  const across = pitch < 24 ? "" : "H", size = Math.min(11, Math.max(9, pitch * 0.45));
  const every = Math.ceil((across ? 24 : 14) / pitch), down = Math.ceil((size + 1) / pitch);
  const place = (one, left, top, width, height) => Object.assign(one.style,
    { left: `${left}px`, top: `${top}px`, width: `${width}px`, height: `${height}px`, fontSize: `${size}px` });
  overview.columns.forEach((one, head) => {
    one.hidden = head % every > 0;
    one.textContent = `${across}${head}`;
    one.style.textAlign = "center";
    place(one, overview.left + pitch * head - (pitch * (every - 1)) / 2, 3, side + pitch * (every - 1), size);
  });
  overview.names.forEach((one, at) => {
    one.hidden = at % down > 0;
    place(one, 0, overview.top + pitch * at + side / 2 - size / 2, overview.left - 4, size);
    one.style.textAlign = "right";
  });
  overview.cells.forEach((cells, at) => cells.forEach((one, head) =>
    place(one, overview.left + pitch * head, overview.top + pitch * at, side, side)));
}

// Which cell is open, which are ticked and in which colour, and which one Tab comes to.
function markCells() {
  overview.cells.forEach((cells, row) => cells.forEach((one, head) => {
    const open = row === state.row && head === state.head;
    const ticked = compared.find((each) => each.on && each.row === row && each.head === head);
    one.setAttribute("aria-current", open);
    one.setAttribute("aria-selected", Boolean(ticked));
    one.tabIndex = open ? 0 : -1;
    if (ticked) one.style.setProperty("--own", `var(--head${ticked.slot})`);
  }));
}

// Scroll the overview, and nothing else, so that the open head's cell is in view.
function showOpenCell() {
  const shelf = element("shelf"), { pitch, left, top } = overview;
  const into = (at, edge, room, before) => Math.min(Math.max(before, (at + 1) * pitch + edge + 8 - room), at * pitch);
  shelf.scrollTo(into(state.head, left, shelf.clientWidth, shelf.scrollLeft), into(state.row, top, shelf.clientHeight, shelf.scrollTop));
}
