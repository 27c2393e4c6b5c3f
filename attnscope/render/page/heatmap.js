"use strict";
// One head: a frozen row and column of labels around the part of the map that is in view; and what its colours mean.

const map = { cell: 0, tall: 0, left: 0, top: 0, picture: null };
const LABEL = 11, LINE_OF_WORDS = 14, SMALLEST = 1, WIDEST = 40, OUT = 0.75;

// For each row, what a byte looks like, in a scale; `full` is the weight of full colour where heads share it.
function rowPixels(head, scale, full = null) {
  const { bytes, rows, columns } = head;
  if (scale === "row")
    return Array.from({ length: rows }, (_, row) => pixelsOf(state.cmap, largestOfRow(bytes, row, columns) || 1));
  return Array(rows).fill(pixelsOf(state.cmap, full ?? fullOf(head, scale)));
}

function largest(bytes) {
  let top = 0;
  for (const byte of bytes) if (byte !== CLOSED && SIZE[byte] > top) top = SIZE[byte];
  return top;
}

const largestOfRow = (bytes, row, columns) => largest(bytes.subarray(row * columns, (row + 1) * columns));

// The rows with more than half as many open keys as any has; others have large weights for want of keys.
function choosingRows({ bytes, rows, columns }) {
  const open = new Uint32Array(rows);
  for (let row = 0, i = 0; row < rows; row++)
    for (const end = i + columns; i < end; i++) if (bytes[i] !== CLOSED) open[row]++;
  const most = open.reduce((one, other) => Math.max(one, other), 0);
  return [...open.keys()].filter((row) => 2 * open[row] > most);
}

// The largest weight of the rows that can choose.
const largestOfHead = (head) => choosingRows(head).reduce((top, row) =>
  Math.max(top, largestOfRow(head.bytes, row, head.columns)), 0);

// The next of 1, 2, 2.5 or 5 times a power of ten; a stored weight may be a little above its own.
function roundUp(weight) {
  if (!(weight > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(weight));
  return Number(([1, 2, 2.5, 5, 10].find((step) => step * power >= weight * 0.995) * power).toPrecision(2));
}

// The mean weight of the rows that can choose, over all heads.
function meanOf(heads) {
  let sum = 0, count = 0;
  for (const head of heads)
    for (const row of choosingRows(head))
      for (const byte of head.bytes.subarray(row * head.columns, (row + 1) * head.columns))
        if (byte !== CLOSED) (sum += SIZE[byte]), count++;
  return count ? sum / count : 0;
}

// Whether many rows exceed a multiple of the mean, as on a diagonal; the heaviest key, perhaps a sink, aside.
function isSharp(head) {
  const rows = choosingRows(head), weight = PAGE.bright * meanOf([head]), sums = new Float64Array(head.columns);
  const parts = rows.map((row) => head.bytes.subarray(row * head.columns, (row + 1) * head.columns));
  for (const part of parts) part.forEach((byte, key) => { if (byte !== CLOSED) sums[key] += SIZE[byte]; });
  const sink = sums.reduce((best, sum, key) => (sum > sums[best] ? key : best), 0);
  const exceed = (part) => part.some((byte, key) => key !== sink && byte !== CLOSED && SIZE[byte] > weight);
  return parts.filter(exceed).length >= PAGE.sharp * Math.max(parts.length, 1);
}

// The weight of full colour of some heads on the scale "auto": the largest of rows with many keys, rounded up, and
// 1 at most; a multiple of the mean where few rows would leave all others dark, unless what is `sharp` is the pattern.
function fullColour(heads, sharp = false, bright = PAGE.bright) {
  const every = () => Math.max(...heads.map((head) => largest(head.bytes)));
  if (PAGE.signed) return roundUp(every());
  const end = sharp ? 1 : roundUp(bright * meanOf(heads));
  return Math.min(roundUp(Math.max(...heads.map(largestOfHead)) || every()), end, 1);
}

const exceeds = (head, full) => head.bytes.some((byte) => byte !== CLOSED && SIZE[byte] > full * 1.005);

// The weight of full colour of a head, where its rows share it.
const fullOf = (head, scale) =>
  ({ fixed: () => 1, head: () => largestOfHead(head) || 1, auto: () => fullColour([head], isSharp(head)) })[scale]();

// The same in words: plain numbers as they are.
function endOf(head) {
  const full = fullOf(head, head.scale);
  return `${exceeds(head, full) ? "≥" : ""}${(head.scale === "head" ? shortly : String)(full)}`;
}

// Hidden weights are as blank as the page around the map.
const isHidden = (byte) => Math.abs(byte - ZERO) < PAGE.hidden[1];
function hideFaint(pixels) {
  const [red, green, blue] = map.ground.match(/[0-9a-f]{2}/g).map((part) => parseInt(part, 16));
  const ground = ((255 << 24) | (blue << 16) | (green << 8) | red) >>> 0;
  return pixels.map((pixel, byte) => (isHidden(byte) ? ground : pixel));
}

function settleMap() {
  const { bytes, rows, columns } = current;
  current.scale = state.scale;
  map.ground = css("--ground");
  map.picture = cells(bytes, rows, columns, rowPixels(current, current.scale).map(hideFaint));
  const context = document.createElement("canvas").getContext("2d");
  const { axes } = current;
  const longest = (places) => longestLabel(context, places, LABEL);
  axes.left ??= Math.min(longest(axes.queries), 120) + 10;
  axes.top ??= Math.min(longest(axes.keys), 110) + 10;
  Object.assign(map, { left: axes.left, top: axes.top });
}

function fittingCell() {
  const stage = element("stage");
  const across = (stage.clientWidth - map.left - 2 - LABEL / 2) / current.columns;
  const down = (tallest(stage) - map.top - 2 - LABEL / 2) / current.rows;
  return Math.min(Math.max(Math.min(across, down), SMALLEST), WIDEST);
}

// Few rows over many columns, as those of words over a sound, are as tall as a line of text where there is room.
function rowHeight() {
  if (current.rows >= current.columns) return map.cell;
  const room = (tallest(element("stage")) - map.top - 2 - LABEL / 2) / current.rows;
  return Math.max(map.cell, Math.min(LINE_OF_WORDS, room));
}

// The last label may be wider than what it stands at.
const beyond = (size) => Math.max(0, (LABEL - size) / 2);
const wholeMap = () => ({ width: map.left + map.cell * current.columns + beyond(map.cell),
  height: map.top + map.tall * current.rows + beyond(map.tall) });

function drawMap() {
  const stage = element("stage");
  map.cell = state.cell ?? fittingCell();
  map.tall = rowHeight();
  const full = wholeMap();
  element("room").style.width = `${full.width}px`;
  element("room").style.height = `${full.height}px`;
  const width = Math.min(stage.clientWidth, full.width);
  const height = Math.min(tallest(stage), full.height);
  paintMap(sized(element("picture"), width, height), width, height, stage.scrollLeft, stage.scrollTop);
}

// The part of the map that begins at x and y, with its labels.
function paintMap(context, width, height, x = 0, y = 0) {
  if (PAGE.hidden[1] && map.ground !== css("--ground")) settleMap(); // light has become dark, or dark light
  const { left, top } = map, across = map.cell * current.columns, down = map.tall * current.rows;
  context.save();
  context.beginPath();
  context.rect(left, top, width - left, height - top);
  context.clip();
  context.fillStyle = hatching(context);
  context.fillRect(left, top, across - x, down - y);
  context.imageSmoothingEnabled = false;
  context.drawImage(map.picture, left - x, top - y, across, down);
  drawCross(context, left - x, top - y);
  context.restore();
  drawLabels(context, false, y, height);
  drawLabels(context, true, x, width);
}

// The row and the column that are marked: under the pointer, or of the pinned token.
const markedRow = () => state.pointer?.row ?? (state.side === "query" ? state.token : null);
const markedColumn = () => state.pointer?.column ?? (state.side === "key" ? state.token : null);

function drawCross(context, left, top) {
  const { cell, tall } = map, row = markedRow(), column = markedColumn();
  context.strokeStyle = css("--mark");
  context.lineWidth = 2 * OUT;
  const frame = (x, y, width, height) => context.strokeRect(x - OUT, y - OUT, width + 2 * OUT, height + 2 * OUT);
  if (row !== null) frame(left, top + row * tall, cell * current.columns, tall);
  if (column !== null) frame(left + column * cell, top, cell, tall * current.rows);
}

// Which labels of an axis to write: each, or every nth, and always the marked one.
function* labelsInView(count, size, scrolled, room, marked) {
  const every = Math.max(1, Math.ceil(LABEL / size));
  const first = Math.floor(scrolled / size), last = Math.ceil((scrolled + room) / size);
  for (let i = Math.max(0, first - (first % every)); i < Math.min(count, last + 1); i += every)
    if (marked === null || i === marked || Math.abs(i - marked) * size >= LABEL) yield i;
  if (marked !== null && marked % every) yield marked;
}

const labelSize = (size) => Math.max(Math.min(LABEL, size * 0.95), 9);

// The labels of the rows on the left, or of the columns above, from the bottom up.
function drawLabels(context, across, scrolled, room) {
  const { left, top } = map, size = across ? map.cell : map.tall;
  const places = across ? current.axes.keys : current.axes.queries, marked = across ? markedColumn() : markedRow();
  const write = writer(context, labelSize(size)), plain = css("--text"), strong = css("--mark");
  context.save();
  context.beginPath();
  if (across) context.rect(left - 7, 0, room, top);
  else context.rect(0, top - 7, left, room);
  context.clip();
  context.textAlign = across ? "left" : "right";
  context.textBaseline = "middle";
  for (const i of labelsInView(places.length, size, scrolled, room - (across ? left : top), marked)) {
    const at = (i + 0.5) * size - scrolled;
    write(places[i]);
    context.save();
    context.translate(...(across ? [left + at, top - 5] : [left - 5, top + at]));
    if (across) context.rotate(-Math.PI / 2);
    context.fillStyle = i === marked ? strong : plain;
    writeLabel(context, places[i], 0, 0, across ? top - 8 : left - 10);
    context.restore();
  }
  context.restore();
}

// Row and column under a pointer; either is null over labels.
function cellAt(event) {
  const stage = element("stage");
  const row = Math.floor((event.offsetY - map.top + stage.scrollTop) / map.tall);
  const column = Math.floor((event.offsetX - map.left + stage.scrollLeft) / map.cell);
  const found = {
    row: event.offsetY >= map.top && row < current.rows ? row : null,
    column: event.offsetX >= map.left && column < current.columns ? column : null,
  };
  return found.row === null && found.column === null ? null : found;
}

// Where the middle of a cell is in the window, scrolled to be seen.
function showCell({ row, column }) {
  const stage = element("stage"), { cell, tall, left, top } = map;
  const seen = (at, size, start, room, scrolled) =>
    Math.min(Math.max(scrolled, (at + 1) * size - (room - start)), at * size);
  stage.scrollTo(seen(column, cell, left, stage.clientWidth, stage.scrollLeft),
    seen(row, tall, top, stage.clientHeight, stage.scrollTop));
  const box = stage.getBoundingClientRect();
  return { x: box.left + left + (column + 0.5) * cell - stage.scrollLeft, y: box.top + top + row * tall - stage.scrollTop };
}

// What the weights of the open kind are.
const barOf = () => PAGE.kinds[state.kind].bar;

// The legend, true to what is drawn.
function highest() {
  if (current.scale === "row") return `each row's largest ${barOf()}`;
  const full = `${endOf(current)} ${barOf()}`;
  if (current.scale !== "head") return full;
  const where = choosingRows(current).length < current.rows ? " in rows with many unmasked keys" : "";
  return `${full}, this head's largest${where}`;
}

const lowest = () => (!PAGE.signed ? "0" : current.scale === "row" ? "-" : `-${endOf(current)}`.replace("-≥", "≤-"));

function drawLegend() {
  const map = state.mode !== "lines", drawn = state.mode !== "map";
  element("mapped").hidden = element("zoom").hidden = !map;
  element("closed").hidden = !map || !current.bytes.includes(CLOSED);
  element("drawn").hidden = !drawn;
  element("few").hidden = !drawn || drawnHeads().length < 2 || state.token !== null;
  element("low").textContent = lowest();
  element("high").textContent = highest();
  element("direction").textContent = direction();
  element("least").textContent = leastLine();
  const context = element("ramp").getContext("2d"), image = context.createImageData(256, 1);
  new Uint32Array(image.data.buffer).set(palette(state.cmap));
  context.putImageData(image, 0, 0);
  if (drawn) paintSamples(sized(element("samples"), SAMPLES, 16), 0, 8);
}

const direction = () => (state.mode === "lines" ? "left attends to right" : PAGE.sentence)
  + (state.mode !== "lines" && current.bytes.some(isHidden) ? `; hidden below ${PAGE.hidden[0]}: blank` : "")
  + (current.axes.queries.some(wrote) ? "; bold: generated by the model" : "");
