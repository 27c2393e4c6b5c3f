"use strict";
// Two columns of tokens, and a line for every weight: queries on the left look at keys on the right.

const LINE = 19, FAINTEST = 0.02;
const lines = { left: 0, right: 0, width: 0 };

function drawLines() {
  const stage = document.getElementById("stage");
  const { rows, columns, bytes, axes } = current;
  const tall = Math.max(rows, columns) * LINE + 8;
  const room = document.getElementById("room");
  room.style.width = "100%";
  room.style.height = `${tall}px`;
  const width = stage.clientWidth;
  const height = Math.min(tallest(stage), tall);
  const context = sized(document.getElementById("picture"), width, height);
  const side = Math.min(150, width * 0.32);
  Object.assign(lines, { left: side, right: width - side, width });
  const y = (i) => 4 + (i + 0.5) * LINE - stage.scrollTop;
  const inView = (i) => y(i) > -LINE && y(i) < height + LINE;
  const focus = state.pointer ?? (state.token === null ? null
    : state.side === "query" ? { row: state.token, column: null } : { row: null, column: state.token });
  const scales = state.scale === "row"
    ? Array.from({ length: rows }, (_, row) => largest(bytes.subarray(row * columns, (row + 1) * columns)))
    : Array(rows).fill(state.scale === "head" ? largest(bytes) : 1);
  context.strokeStyle = css("--bar");
  const line = (row, column) => {
    const byte = bytes[row * columns + column];
    const strength = byte === CLOSED ? 0 : Math.min(WEIGHT[byte] / scales[row], 1);
    if (strength < FAINTEST || !(inView(row) || inView(column))) return;
    context.globalAlpha = strength;
    context.lineWidth = 0.6 + 2.2 * strength;
    context.beginPath();
    context.moveTo(lines.left, y(row));
    context.lineTo(lines.right, y(column));
    context.stroke();
  };
  const some = (chosen, count) => (chosen === null || chosen === undefined ? [...Array(count).keys()] : [chosen]);
  for (const row of some(focus?.row, rows)) for (const column of some(focus?.column, columns)) line(row, column);
  context.globalAlpha = 1;
  context.font = font(13);
  context.textBaseline = "middle";
  drawTokens(context, axes.queries, "right", lines.left - 6, y, inView, focus?.row);
  drawTokens(context, axes.keys, "left", lines.right + 6, y, inView, focus?.column);
}

function drawTokens(context, places, align, x, y, inView, marked) {
  context.textAlign = align;
  places.forEach(([text, number], i) => {
    if (!inView(i)) return;
    context.fillStyle = css(i === marked ? "--mark" : "--text");
    const room = lines.left - 10 - context.measureText(` ${number}`).width;
    const shown = `\u2068${cutTo(context, text, room)}\u2069`;
    context.fillText(align === "right" ? `${shown} ${number}` : `${number} ${shown}`, x, y(i));
  });
}

// The token under a pointer: on the left a query, on the right a key.
function tokenAt(event) {
  const i = Math.floor((event.offsetY - 4 + document.getElementById("stage").scrollTop) / LINE);
  if (event.offsetX < lines.left && i < current.rows) return { row: i, column: null };
  if (event.offsetX > lines.right && i < current.columns) return { row: null, column: i };
  return null;
}
