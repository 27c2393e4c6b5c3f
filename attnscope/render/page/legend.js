"use strict";
// What colours and lines mean, true to what is drawn.

const MEANING = { fixed: "1", row: "each row's largest" };
function highest() {
  if (current.scale !== "head") return MEANING[current.scale];
  const where = choosingRows(current).length < current.rows ? " where most keys are open" : "";
  return `${shortly(largestOfHead(current))}, this head's largest${where}`;
}

function drawLegend() {
  const map = state.mode !== "lines", drawn = state.mode !== "map";
  element("mapped").hidden = element("zoom").hidden = !map;
  element("closed").hidden = !map || !current.bytes.includes(CLOSED);
  element("drawn").hidden = !drawn;
  element("few").hidden = !drawn || drawnHeads().length < 2 || state.token !== null;
  element("high").textContent = highest();
  element("direction").textContent = direction();
  element("least").textContent = leastLine();
  const context = element("ramp").getContext("2d"), image = context.createImageData(256, 1);
  new Uint32Array(image.data.buffer).set(palette(state.cmap));
  context.putImageData(image, 0, 0);
  if (drawn) paintSamples(sized(element("samples"), SAMPLES, 16), 0, 8);
}

const direction = () => (state.mode === "lines" ? "left looks at right" : "rows look at columns")
  + (current.axes.queries.some(wrote) ? "; bold: written by the model" : "");

function leastLine() {
  const focus = focusNow(), least = faintest(drawnHeads().length, focus.row !== null || focus.column !== null);
  const few = showsFew(focus) ? "; the five strongest of each token" : "";
  const bars = state.token === null ? "" : `; a full bar is ${current.scale === "fixed" ? "1" : "the largest"}`;
  return (current.scale === "fixed" ? `below ${least} no line` : `of the largest; below ${least} of it no line`) + few + bars;
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
