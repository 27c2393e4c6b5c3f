"use strict";
// Every head as a thumbnail on one canvas: layers down, heads across.

const overview = { width: 0, tile: 0, gap: 0, left: 30, top: 18, rows: [], pictures: [] };

function settleOverview() {
  const layers = PAGE.kinds[state.kind].layers;
  overview.rows = layers;
  overview.pictures = layers.map((layer) => {
    const [rows, columns, text] = layer.small;
    const bytes = bytesOf(text), size = rows * columns;
    const look = Array.from({ length: layer.heads }, (_, head) =>
      rowPixels(bytes.subarray(head * size, (head + 1) * size), rows, columns));
    return cells(bytes, layer.heads * rows, columns, look.flat()); // the heads of a layer stand below each other
  });
}

function drawOverview() {
  const canvas = document.getElementById("grid");
  const width = canvas.parentElement.clientWidth;
  const heads = Math.max(...overview.rows.map((layer) => layer.heads));
  const pitch = Math.min((width - overview.left) / heads, 84);
  Object.assign(overview, { width, pitch, gap: Math.max(1, pitch * 0.08) });
  const context = sized(canvas, width, overview.top + pitch * overview.rows.length);
  const hatch = hatching(context);
  const side = pitch - overview.gap;
  context.imageSmoothingEnabled = false;
  context.font = font(Math.min(11, Math.max(8, pitch * 0.38)));
  context.fillStyle = css("--quiet");
  context.textAlign = "center";
  for (let head = 0; head < heads; head++)
    context.fillText(pitch < 24 ? head : `H${head}`, overview.left + pitch * head + side / 2, overview.top - 6);
  overview.rows.forEach((layer, row) => {
    const y = overview.top + pitch * row;
    context.fillStyle = css("--quiet");
    context.textAlign = "right";
    context.fillText(`L${layer.layer}`, overview.left - 5, y + side / 2 + 4);
    const [rows, columns] = layer.small;
    context.imageSmoothingEnabled = side < columns;
    for (let head = 0; head < layer.heads; head++) {
      const x = overview.left + pitch * head;
      context.fillStyle = hatch;
      context.fillRect(x, y, side, side);
      context.drawImage(overview.pictures[row], 0, head * rows, columns, rows, x, y, side, side);
    }
  });
  context.strokeStyle = css("--mark");
  context.lineWidth = 2;
  const x = overview.left + pitch * state.head, y = overview.top + pitch * state.row;
  context.strokeRect(x - 1, y - 1, side + 2, side + 2);
  canvas.setAttribute("aria-label", `thumbnails of all heads; ${headName()} is open`);
}

function headAt(event) {
  const head = Math.floor((event.offsetX - overview.left) / overview.pitch);
  const row = Math.floor((event.offsetY - overview.top) / overview.pitch);
  const layer = overview.rows[row];
  return layer && head >= 0 && head < layer.heads ? { row, head } : null;
}
