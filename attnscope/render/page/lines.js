"use strict";
// Two columns of tokens, and a line for every weight: queries on the left attend to keys on the right. Of one
// token each head has a lane of its own, so that none hides another, and bars beside the tokens at the other end.

const LINE = 20, BAR = 9;
const lines = { left: 0, right: 0, width: 0, labels: 0, bar: 0 };

// The token whose lines are drawn alone, the pinned one or else the one under the pointer; and the token at the
// other end that the pointer is over.
function focusNow() {
  const { row, column } = state.pointer ?? { row: null, column: null };
  if (state.token !== null && state.side === "query") return { row: state.token, column: null, other: column };
  if (state.token !== null) return { row: null, column: state.token, other: row };
  return row === null ? { row, column, other: null } : { row, column: null, other: column };
}

function drawLines() {
  const stage = element("lined"), tall = tallLines();
  element("strand").style.width = "100%";
  element("strand").style.height = `${tall}px`;
  const width = stage.clientWidth, height = Math.min(tallest(stage), tall);
  paintLines(sized(element("strokes"), width, height), width, height, stage.scrollTop);
}

const tallLines = () => Math.max(current.rows, current.columns) * LINE + 8;

function settleLines(context, width, heads) {
  const { axes } = current;
  axes.label ??= longestLabel(context, [...axes.queries, ...axes.keys], 13);
  const labels = Math.min(axes.label + 12, 150, width * 0.3);
  const bar = state.token === null ? 0 : Math.max(4, Math.min(BAR, (width * 0.2) / heads));
  const bars = bar && bar * heads + 6;
  const left = labels + (state.side === "key" ? bars : 0), right = width - labels - (state.side === "query" ? bars : 0);
  Object.assign(lines, { left, right, width, labels, bar });
}

// How wide the line of a weight is that is a share of the full one; all have their full colour, which stands out
// from the ground. Of one token each line is within its lane.
function strokeOf(strength, alone, heads) {
  if (!alone) return 0.75 + 2.45 * strength;
  return 0.8 + strength * Math.max(1.4, Math.min(7, (LINE - 5) / heads - 0.8));
}

function paintLines(context, width, height, scrolled = 0) {
  const { rows, columns, axes } = current;
  const heads = drawnHeads(), focus = focusNow();
  settleLines(context, width, heads.length);
  const y = (i) => 4 + (i + 0.5) * LINE - scrolled;
  const inView = (i) => y(i) > -LINE && y(i) < height + LINE;
  const alone = focus.row !== null || focus.column !== null;
  const few = showsFew() && strongestLines(heads);
  const some = (chosen, count) => (chosen === null ? [...Array(count).keys()] : [chosen]);
  heads.forEach((head, place) => {
    const lane = alone ? (place - (heads.length - 1) / 2) * ((LINE - 5) / heads.length) : 0;
    context.strokeStyle = css(`--head${head.slot}`);
    const drawn = few ? few.filter((line) => line.place === place && (inView(line.row) || inView(line.column))) : [];
    for (const row of few ? [] : some(focus.row, rows)) for (const column of some(focus.column, columns)) {
      const strength = strengthOf(head, row, column);
      if (strength >= faintest(heads.length, alone) && (inView(row) || inView(column))) drawn.push({ strength, row, column });
    }
    for (const { strength, row, column } of drawn.sort((a, b) => a.strength - b.strength)) { // strong ones above
      context.lineWidth = strokeOf(strength, alone, heads.length);
      context.beginPath();
      context.moveTo(lines.left, y(row) + lane);
      context.lineTo(lines.right, y(column) + lane);
      context.stroke();
    }
  });
  if (state.token !== null) paintBars(context, heads, y, inView);
  context.textBaseline = "middle";
  drawTokens(context, axes.queries, "right", lines.labels - 6, y, inView, focus.row ?? focus.other);
  drawTokens(context, axes.keys, "left", width - lines.labels + 6, y, inView, focus.column ?? focus.other);
}

// Of all tokens the lines of several heads are many: the five strongest of each token are drawn, or all.
const FEW = 5;
const showsFew = (focus = focusNow()) => state.few && drawnHeads().length > 1 && focus.row === null && focus.column === null;

function showFew(few) {
  state.few = few;
  element("few").firstChild.checked = few;
  drawPictures();
}

function strongestLines(heads) {
  const key = [state.kind, state.scale, state.between, ...heads.map(nameOf)].join();
  if (strongestLines.key === key) return strongestLines.found;
  const found = Array.from({ length: current.rows }, (_, row) => {
    const best = [];
    for (let column = 0; column < current.columns; column++) heads.forEach((head, place) => {
      const strength = strengthOf(head, row, column);
      if (strength < faintest(heads.length, false) || (best.length === FEW && strength <= best[FEW - 1].strength)) return;
      best.splice(best.findLastIndex((each) => each.strength >= strength) + 1, 0, { strength, row, column, place });
      best.length = Math.min(best.length, FEW);
    });
    return best;
  });
  return Object.assign(strongestLines, { key, found: found.flat() }).found;
}

// Weaker lines than that are not drawn: where many heads are, the bars tell them, and of all tokens they hide others.
const faintest = (heads, alone) => (alone ? (heads > 3 ? 0.05 : 0.02) : 0.1);

// How much of the full line or bar a weight is.
function strengthOf(head, row, column) {
  const byte = head.bytes[row * head.columns + column];
  if (byte === CLOSED) return 0;
  head.scale ??= state.scale;
  head.full ??= head.scale === "row" ? new Map() : lineEnd(head);
  if (head.scale === "row" && !head.full.has(row)) head.full.set(row, largestOfRow(head.bytes, row, head.columns) || 1);
  return Math.min(SIZE[byte] / (head.scale === "row" ? head.full.get(row) : head.full), 1);
}

// The pinned token's weights at the other end: a column of bars for each head.
function paintBars(context, heads, y, inView) {
  const query = state.side === "query", start = query ? lines.right + 3 : lines.labels + 3;
  const count = query ? current.columns : current.rows;
  for (let i = 0; i < count; i++) {
    if (!inView(i)) continue;
    heads.forEach((head, place) => {
      const strength = strengthOf(head, query ? state.token : i, query ? i : state.token);
      const tall = Math.max(strength * (LINE - 4), strength >= 0.02 ? 1.5 : 0);
      context.fillStyle = css(`--head${head.slot}`);
      context.fillRect(start + place * lines.bar, y(i) + LINE / 2 - 2 - tall, lines.bar - 1, tall);
    });
  }
  context.fillStyle = css("--edge");
  for (let i = 0; i < count; i++)
    if (inView(i)) context.fillRect(start, y(i) + LINE / 2 - 2, lines.bar * heads.length - 1, 0.5);
}

function drawTokens(context, places, align, x, y, inView, marked) {
  const plain = css("--text"), strong = css("--mark");
  const write = writer(context, 13);
  context.textAlign = align;
  places.forEach((place, i) => {
    if (!inView(i)) return;
    write(place);
    context.fillStyle = i === marked ? strong : plain;
    writeLabel(context, place, x, y(i), lines.labels - 10, align === "left");
  });
}

// The token under a pointer: on the left a query, on the right a key.
function tokenAt(event) {
  const i = Math.floor((event.offsetY - 4 + element("lined").scrollTop) / LINE);
  if (event.offsetX < lines.left && i >= 0 && i < current.rows) return { row: i, column: null };
  if (event.offsetX > lines.right && i >= 0 && i < current.columns) return { row: null, column: i };
  return null;
}

// The weight of the strongest line; on the scale "auto" 1, unless all would be faint.
const FAINT = 0.25;
function lineEnd(head) {
  const scale = head.scale ?? state.scale, most = largestOfHead(head);
  return scale !== "auto" ? fullOf(head, scale) : most > FAINT ? 1 : roundUp(most);
}

// What the legend says of lines.
function leastLine() {
  const focus = focusNow(), least = faintest(drawnHeads().length, focus.row !== null || focus.column !== null);
  const few = showsFew(focus) ? "; the five strongest of each token" : "";
  const full = current.scale === "row" ? "the largest" : String(Number(lineEnd(current).toPrecision(2)));
  const bars = state.token === null ? "" : `; full bar = ${full}`;
  return (full === "1" ? `below ${least} no line` : `of ${full}; below ${least} of it no line`) + few + bars;
}

// Lines of three strengths as they are drawn now, each with its number.
const SAMPLES = 190;
function paintSamples(context, x, y) {
  const focus = focusNow(), alone = focus.row !== null || focus.column !== null;
  const heads = drawnHeads();
  context.font = font(12);
  context.textAlign = "left";
  context.textBaseline = "middle";
  for (const [place, strength] of [0.1, 0.5, 1].entries()) {
    const stroke = strokeOf(strength, alone, heads.length), start = x + place * 64;
    context.strokeStyle = css(heads.length === 1 ? `--head${heads[0].slot}` : "--text");
    context.lineWidth = stroke;
    context.beginPath();
    context.moveTo(start, y);
    context.lineTo(start + 30, y);
    context.stroke();
    context.fillStyle = css("--quiet");
    context.fillText(strength, start + 35, y + 1);
  }
}
