"use strict";
// The view as a picture of its own: whole, with its title and its legend, as PNG or as SVG.

const EDGE = 14, NARROW = 460, LEAST_LINES = 420, LARGEST_SIDE = 16000;

// The pictures of the view side by side, with the size and the brush of each.
function shownParts() {
  const parts = [];
  if (state.mode !== "lines") parts.push({ ...wholeMap(), paint: paintMap });
  if (state.mode !== "map") parts.push({ width: Math.max(element("lined").clientWidth, LEAST_LINES), height: tallLines(), paint: paintLines });
  return parts;
}

function posterLines(context, width) {
  const shown = drawnHeads(), [role, sentence] = layerNow().about[state.head] ?? [];
  const heading = state.mode === "lines" ? shown.map(nameOf).join(", ") : headName();
  context.font = font(12);
  const title = `${heading} · ${PAGE.kinds[state.kind].kind} · ${PAGE.title}`;
  const single = state.mode !== "lines" || shown.length === 1 && nameOf(shown[0]) === headName();
  const said = single ? [role, sentence].filter(Boolean).join(": ") : "";
  return [...wrapped(context, title, width), ...(said ? wrapped(context, said, width) : [])];
}

function wrapped(context, text, width) {
  const rows = [""];
  for (const word of text.split(" ")) {
    const longer = rows.at(-1) ? `${rows.at(-1)} ${word}` : word;
    if (context.measureText(longer).width <= width) rows[rows.length - 1] = longer;
    else rows.push(cutTo(context, word, width));
  }
  return rows.filter(Boolean);
}

// The whole poster on a canvas or as SVG; `surface` makes what it is drawn on for a size.
function drawPoster(surface) {
  const parts = shownParts(), ruler = made("canvas").getContext("2d");
  const width = Math.max(NARROW, parts.reduce((sum, part) => sum + part.width, 0) + (parts.length - 1) * EDGE);
  const said = posterLines(ruler, width), top = EDGE + said.length * 18 + 6;
  const tall = Math.max(...parts.map((part) => part.height)), legend = legendRows(ruler, width);
  const context = surface(width + 2 * EDGE, top + tall + 12 + legend.length * 22 + EDGE);
  context.textAlign = "left";
  context.textBaseline = "middle";
  context.fillStyle = css("--ground");
  context.fillRect(0, 0, width + 2 * EDGE, top + tall + 12 + legend.length * 22 + EDGE);
  context.fillStyle = css("--text");
  context.font = font(12);
  said.forEach((line, i) => context.fillText(line, EDGE, EDGE + 8 + i * 18));
  let x = EDGE;
  for (const part of parts) {
    context.save();
    context.translate(x, top);
    part.paint(context, part.width, part.height);
    context.restore();
    x += part.width + EDGE;
  }
  legend.forEach((row, i) => row.reduce((at, one) => {
    one.paint(context, at, top + tall + 22 + i * 22);
    return at + one.width + 18;
  }, EDGE));
}

// What the legend says, in rows that fit.
function legendRows(ruler, width) {
  ruler.font = font(12);
  const words = (text, before, paint) => ({ width: before + ruler.measureText(text).width, paint: (context, x, y) => {
    paint(context, x, y);
    Object.assign(context, { font: font(12), fillStyle: css("--quiet"), textAlign: "left", textBaseline: "middle" });
    context.fillText(text, x + before, y + 1);
  } });
  const all = [];
  if (state.mode !== "lines") {
    const image = element("ramp");
    all.push(words(lowest(), 0, () => null), words(highest(), 136, (context, x, y) => context.drawImage(image, x, y - 5, 130, 11)));
    if (current.bytes.includes(CLOSED)) all.push(words("masked", 17, (context, x, y) => {
      context.fillStyle = hatching(context);
      context.fillRect(x, y - 5, 11, 11);
    }));
  }
  if (state.mode !== "map") {
    all.push(words(leastLine(), SAMPLES, paintSamples));
    for (const each of drawnHeads()) all.push(words(nameOf(each), 16, (context, x, y) => {
      context.fillStyle = css(`--head${each.slot}`);
      context.fillRect(x, y - 5, 11, 11);
    }));
  }
  all.push(words(direction(), 0, () => null));
  const rows = [[]];
  let left = width;
  for (const one of all) {
    if (rows.at(-1).length && one.width > left) {
      rows.push([]);
      left = width;
    }
    rows.at(-1).push(one);
    left -= one.width + 18;
  }
  return rows;
}

async function posterAs(form) {
  if (form === "svg") {
    let vector;
    drawPoster((width, height) => (vector = new Vector(width, height)));
    return new Blob([vector.text()], { type: "image/svg+xml" });
  }
  const canvas = made("canvas");
  drawPoster((width, height) => {
    const sharp = Math.min(2, LARGEST_SIDE / Math.max(width, height));
    canvas.width = Math.round(width * sharp);
    canvas.height = Math.round(height * sharp);
    const context = canvas.getContext("2d");
    context.scale(sharp, sharp);
    return context;
  });
  return new Promise((done) => canvas.toBlob(done));
}

async function save(form) {
  const name = `${PAGE.kinds[state.kind].kind}-${headName()}.${form}`;
  const link = made("a", { download: name, href: URL.createObjectURL(await posterAs(form)) });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60000);
  say(`saved ${name}`);
}
