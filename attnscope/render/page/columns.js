"use strict";
// One token in every head of the open layer: a row for each token at the other end, a coloured column for each head.
// It is the token of the list that the pointer is over, or was last, or else the chosen one.

const ROW = 16;
const layered = { over: null, layer: "", heads: [], shown: null, cell: 0, labels: 0, top: 16 };

// The heads of the layer; they are read when they are first shown.
async function readLayer() {
  const layer = [state.kind, state.row, state.between].join();
  if (layered.layer === layer) return;
  const heads = await Promise.all(Array.from({ length: layerNow().heads }, (_, head) => readHead(state.row, head)));
  if (layer === [state.kind, state.row, state.between].join()) Object.assign(layered, { layer, heads });
}

async function drawColumns() {
  const chosen = layered.over ?? (state.token === null ? null : { token: state.token, side: state.side });
  element("layer").hidden = !chosen || layerNow().heads < 2;
  layered.shown = null;
  if (element("layer").hidden) return;
  await readLayer();
  const { axes } = current, query = chosen.side === "query";
  const own = (query ? axes.queries : axes.keys)[chosen.token];
  if (layered.heads[0]?.axes !== axes || !own) return; // another layer was opened meanwhile
  const others = query ? axes.keys : axes.queries;
  const byte = (head, other) => head.bytes[query ? chosen.token * head.columns + other : other * head.columns + chosen.token];
  const weight = (head, i) => (byte(head, i) === CLOSED ? 0 : WEIGHT[byte(head, i)]);
  const size = (head, i) => Math.abs(weight(head, i));
  const best = (head) => others.reduce((one, _, i) => (size(head, i) > size(head, one) ? i : one), 0);
  const top = state.scale === "fixed" ? 1 : Math.max(...layered.heads.map((head) => size(head, best(head)))) || 1;
  layered.shown = { ...chosen, others, byte, top };
  const verb = query ? "attends to" : "is attended to by";
  element("who").replaceChildren(isolated(own[0]), `${behind(own)} ${verb}, in every head of layer ${layerNow().layer}`);
  element("most").textContent = `Colour scale: ${FROM}${shortly(top)}${state.scale === "fixed" ? "" : " (the largest here)"}. A click opens the head.`;
  const strongest = layered.heads.map((head) => `H${head.head} ${others[best(head)][0]} ${shortly(weight(head, best(head)))}`);
  element("ranks").setAttribute("aria-label", `${own[0]} ${verb}, most in each head: ${strongest.join(", ")}`);
  paintColumns();
  const seen = best(layered.heads[state.head]) * ROW, stage = element("ranks");
  if (seen < stage.scrollTop || seen + ROW + layered.top > stage.scrollTop + stage.clientHeight) stage.scrollTop = seen - stage.clientHeight / 2;
}

function paintColumns() {
  if (!layered.shown) return;
  const { others, byte, top } = layered.shown, { heads } = layered, stage = element("ranks");
  const tall = layered.top + others.length * ROW;
  element("file").style.height = `${tall}px`;
  const room = stage.clientWidth; // beside the bar that scrolls, if there is one
  const height = Math.min(tallest(stage), tall), scrolled = stage.scrollTop;
  const context = sized(element("bands"), room, height);
  current.axes.beside ??= longestLabel(context, [...current.axes.queries, ...current.axes.keys], 12);
  layered.labels = Math.min(current.axes.beside + 10, room * 0.45);
  layered.cell = Math.min((room - layered.labels - 4) / heads.length, 22);
  const { cell, labels } = layered, colours = palette(state.cmap), hatch = hatching(context), gap = cell > 5 ? 1 : 0;
  const write = writer(context, 12);
  context.textBaseline = "middle";
  for (let i = Math.floor(scrolled / ROW); i < others.length && i * ROW < scrolled + height; i++) {
    const y = layered.top + i * ROW - scrolled;
    write(others[i]);
    context.textAlign = "right";
    context.fillStyle = css("--text");
    writeLabel(context, others[i], labels - 5, y + ROW / 2, labels - 8);
    heads.forEach((head, at) => {
      const code = byte(head, i), pixel = colours[toneOf(WEIGHT[code], top)];
      context.fillStyle = code === CLOSED ? hatch : `rgb(${pixel & 255}, ${(pixel >> 8) & 255}, ${(pixel >> 16) & 255})`;
      context.fillRect(labels + at * cell, y, cell - gap, ROW - gap);
    });
  }
  context.fillStyle = css("--ground"); // the heads' numbers stay while the tokens are scrolled
  context.fillRect(0, 0, room, layered.top);
  context.font = font(10);
  context.textAlign = "center";
  const every = Math.ceil(context.measureText("H000").width / cell / 1.3);
  heads.forEach(({ head }, at) => {
    context.fillStyle = css(head === state.head ? "--mark" : "--quiet");
    if (head === state.head || (head % every === 0 && Math.abs(head - state.head) >= every)) context.fillText(`H${head}`, labels + (at + 0.5) * cell, 8);
  });
}

// The head and the token under a pointer.
function bandAt(event) {
  if (!layered.shown) return null;
  const at = Math.floor((event.offsetX - layered.labels) / layered.cell);
  const other = Math.floor((event.offsetY - layered.top + element("ranks").scrollTop) / ROW);
  return layered.heads[at] && event.offsetY >= layered.top && layered.shown.others[other] ? { head: layered.heads[at], other } : null;
}

function tellBand(event) {
  const found = bandAt(event);
  if (!found) return hideTip();
  const { others, byte } = layered.shown, code = byte(found.head, found.other), place = others[found.other];
  return putTip({ x: event.clientX, y: event.clientY }, `${nameOf(found.head)}  `, isolated(place[0]),
    `${behind(place)}  ${code === CLOSED ? "masked" : closely(WEIGHT[code])}`);
}

function startColumns() {
  const reading = element("reading"), bands = element("bands");
  reading.addEventListener("pointerover", (event) => {
    const one = event.pointerType !== "touch" && event.target.closest("[role=option]");
    if (!one) return;
    const token = +one.dataset.at;
    layered.over = { token, side: sideOf(token, one.parentNode.dataset.side) };
    drawColumns();
  });
  bands.addEventListener("pointermove", tellBand);
  bands.addEventListener("pointerleave", hideTip);
  bands.addEventListener("click", (event) => bandAt(event) && openHead(state.row, bandAt(event).head.head));
  element("ranks").addEventListener("scroll", paintColumns);
}
