"use strict";
// The picture or the spectrogram that tokens stand for: a word lights it, and a part of it lights the words.

const SOUND_HEIGHT = 130, PICTURE_HEIGHT = 440;
const scene = { picture: null, over: null, width: 0, height: 0 }; // `over` is the number of a token on its axis

const partsOf = (place) => (place[3] ?? []).map((number) => PAGE.scene.parts[number]);
const hasParts = (places) => Boolean(PAGE.scene) && places.some((place) => place[3]?.length);

// The axis on which the picture's parts are; none where tokens have no place in it.
function placedSide({ queries, keys } = current.axes) {
  if (hasParts(keys)) return "key";
  return hasParts(queries) ? "query" : null;
}

const placed = () => current.axes[{ key: "keys", query: "queries" }[placedSide()]] ?? [];

// Whether there are words too, that may attend to the picture: then a part of it is a key, and a word a query.
const amongWords = ({ axes } = current) => axes.square && axes.words && hasParts(axes.keys);

// On which side a token is chosen in a list or in the picture.
function sideOf(token, side) {
  if (!current.axes.square) return side;
  if (!amongWords()) return state.side;
  return current.axes.keys[token][3]?.length ? "key" : "query";
}

// What the chosen token gives to a token at the other end, or gets from it; 0 where the mask closed it.
function weightAt(other) {
  const byte = state.side === "query" ? current.bytes[state.token * current.columns + other]
    : current.bytes[other * current.columns + state.token];
  return byte === CLOSED ? 0 : WEIGHT[byte];
}

// The chosen token's weights at the other end by their places, if some of these are in the picture.
function lights() {
  if (state.token === null) return null;
  const { axes } = current, places = state.side === "query" ? axes.keys : axes.queries;
  return hasParts(places) ? places.map((place, i) => ({ place, i, weight: weightAt(i) })) : null;
}

const fine = (place) => Boolean(place[3]?.length) && partsOf(place)[0][4] === 1;

// The heaviest weight of a word with the chosen part of the picture: its bar is full then. 0 where no part is chosen.
function fullWord() {
  const { axes } = current, [own, others] = state.side === "query" ? [axes.queries, axes.keys] : [axes.keys, axes.queries];
  if (!PAGE.scene || state.token === null || (axes.square && !amongWords()) || !own[state.token][3]?.length) return 0;
  return others.reduce((most, place, i) => (place[3]?.length ? most : Math.max(most, weightAt(i))), 0);
}

function drawScene() {
  element("seen").hidden = !PAGE.scene;
  if (!PAGE.scene || !scene.picture) return;
  const [across, down] = PAGE.scene.size, room = element("seen").clientWidth - 2;
  scene.width = PAGE.scene.heard ? room : Math.min(room, (PICTURE_HEIGHT * across) / down);
  scene.height = PAGE.scene.heard ? SOUND_HEIGHT : (scene.width * down) / across;
  const context = sized(element("scene"), scene.width, scene.height);
  context.imageSmoothingEnabled = scene.width < across;
  context.imageSmoothingQuality = "high";
  context.drawImage(scene.picture, 0, 0, scene.width, scene.height);
  const all = lights();
  if (all) paintLight(context, all.filter(({ place }) => fine(place)));
  const side = placedSide(), places = placed();
  const chosen = side === state.side || current.axes.square ? places[state.token] : null;
  if (chosen) outline(context, chosen, 2);
  if (places[scene.over]) outline(context, places[scene.over], 1);
  element("lit").replaceChildren(...sceneSentence(all));
}

// As the terminal and PNGs light a picture: dimmed where no attention goes, and aglow where much does.
function paintLight(context, all) {
  const top = all.reduce((most, { weight }) => Math.max(most, weight), 0) || 1;
  const sharp = window.devicePixelRatio || 1, { width, height } = scene, { dimmed, glow } = PAGE.scene;
  const dim = document.createElement("canvas");
  dim.width = Math.round(width * sharp);
  dim.height = Math.round(height * sharp);
  const brush = dim.getContext("2d"), colours = palette(state.cmap);
  const ink = (pixel, alpha) => `rgba(${pixel & 255}, ${(pixel >> 8) & 255}, ${(pixel >> 16) & 255}, ${alpha})`;
  brush.fillStyle = `rgba(0, 0, 0, ${1 - dimmed})`;
  brush.fillRect(0, 0, dim.width, dim.height);
  for (const { place, weight } of all) for (const [left, top_, right, bottom] of partsOf(place)) {
    const level = weight / top, x = Math.round(left * dim.width), y = Math.round(top_ * dim.height);
    const box = [x, y, Math.round(right * dim.width) - x, Math.round(bottom * dim.height) - y];
    brush.clearRect(...box);
    brush.fillStyle = `rgba(0, 0, 0, ${(1 - dimmed) * (1 - level)})`;
    brush.fillRect(...box);
    brush.fillStyle = ink(colours[Math.round(255 * level)], glow * level);
    brush.fillRect(...box);
  }
  context.drawImage(dim, 0, 0, width, height);
}

// A white line with a dark one around it, which is seen on any picture.
function outline(context, place, wide) {
  for (const [colour, out] of [["#000000", wide + 2], ["#ffffff", wide]])
    for (const [left, top, right, bottom] of partsOf(place)) {
      context.strokeStyle = colour;
      context.lineWidth = out;
      const inside = wide / 2 + 1;
      context.strokeRect(left * scene.width + inside, top * scene.height + inside,
        Math.max((right - left) * scene.width - 2 * inside, 1), Math.max((bottom - top) * scene.height - 2 * inside, 1));
    }
}

// What is lit, in words.
function sceneSentence(all) {
  const what = PAGE.scene.heard ? "moment" : "part of the picture", side = placedSide();
  if (side === null) return [`The tokens of this head have no known place in the ${PAGE.scene.heard ? "sound" : "picture"}.`];
  const words = !current.axes.square || amongWords();
  if (state.token === null)
    return [words ? `Choose a word to light what it attends to; or a ${what} to see bars at the words that attend to it.`
      : `Choose a ${what} to light what it attends to.`];
  const [text, number] = (state.side === "query" ? current.axes.queries : current.axes.keys)[state.token];
  const name = ["“", isolated(text), `” (token ${number})`], full = fullWord();
  const bars = full ? ` A full bar under a word is ${shortly(full)}.` : "";
  if (!all) return ["Outlined: ", ...name, ".", bars];
  const lit = all.filter(({ place }) => fine(place)), top = Math.max(...lit.map(({ weight }) => weight), 0);
  if (!top) return [...name, state.side === "query" ? ` attends to no ${what} in ${headName()}.` : ` is attended to by no ${what} in ${headName()}.`, bars];
  const under = sum(all.filter(({ place }) => place[3]?.length && !fine(place)));
  const share = state.side === "query" ? `, ${shortly(sum(lit))} of its attention` : "";
  const also = under >= 0.005 ? `, and ${shortly(under)} more with small pictures of the whole, not lit` : "";
  return ["Lit: ", ...(state.side === "query" ? ["what ", ...name, ` attends to in ${headName()}`] : [`what attends to `, ...name, ` in ${headName()}`]),
    `${share}${also}. Full brightness is ${shortly(top)}.`, bars];
}

const sum = (all) => all.reduce((whole, { weight }) => whole + weight, 0);

// The token whose part is under a point, in shares of the picture: the finest.
function tokenUnder(x, y) {
  const inside = (place) => partsOf(place).some(([left, top, right, bottom]) => x >= left && x < right && y >= top && y < bottom);
  const found = placed().map((place, i) => [place, i]).filter(([place]) => inside(place));
  return (found.find(([place]) => fine(place)) ?? found[0])?.[1] ?? null;
}

function tellPart(token, at) {
  const place = placed()[token], { axes } = current;
  const said = [isolated(place[0]), ` ${place[1]}`];
  if (state.token !== null && (axes.square || placedSide() !== state.side)) said.push(`  ${closely(weightAt(token))}`);
  putTip(at, ...said);
}

function choosePart(token) {
  pin(token, current.axes.square ? (amongWords() ? "key" : "query") : placedSide());
}

// With keys, from part to part: to the nearest one that lies in the direction of an arrow.
function movePart([down, across]) {
  const middle = (place) => {
    const [left, top, right, bottom] = partsOf(place)[0];
    return [(left + right) / 2, (top + bottom) / 2];
  };
  const places = placed(), known = places.map((place, i) => i).filter((i) => fine(places[i]));
  if (!known.length) return;
  const from = scene.over ?? (state.token !== null && places[state.token] && fine(places[state.token]) ? state.token : null);
  if (from === null) scene.over = known[0];
  else {
    const [x, y] = middle(places[from]);
    const far = known.map((i) => {
      const [u, v] = middle(places[i]), ahead = (u - x) * across + (v - y) * down, beside = Math.abs((u - x) * down) + Math.abs((v - y) * across);
      return { i, ahead, way: ahead + 3 * beside };
    }).filter(({ ahead }) => ahead > 1e-6).sort((a, b) => a.way - b.way);
    scene.over = far[0]?.i ?? from;
  }
  drawScene();
  const [x, y] = middle(places[scene.over]), box = element("scene").getBoundingClientRect();
  tellPart(scene.over, { x: box.left + x * scene.width, y: box.top + y * scene.height });
  say(element("tip").textContent);
}

function pointed(event) {
  return tokenUnder(event.offsetX / scene.width, event.offsetY / scene.height);
}

function leaveScene() {
  scene.over = null;
  hideTip();
  drawScene();
}

async function startScene() {
  if (!PAGE.scene) return;
  const title = PAGE.scene.heard ? "Sound" : "Picture", view = element("view");
  element("sight").textContent = title;
  view.setAttribute("aria-label", `${title}: choosing a word lights what it attends to`);
  view.setAttribute("aria-roledescription", title.toLowerCase());
  view.addEventListener("pointermove", (event) => {
    const over = pointed(event);
    if (over === null) return leaveScene();
    scene.over = over;
    drawScene();
    tellPart(over, { x: event.clientX, y: event.clientY });
  });
  view.addEventListener("pointerleave", (event) => event.pointerType !== "touch" && leaveScene());
  view.addEventListener("blur", leaveScene);
  view.addEventListener("click", (event) => {
    const token = pointed(event);
    if (token !== null) choosePart(token);
  });
  const picture = new Image();
  picture.src = PAGE.scene.image;
  await picture.decode();
  scene.picture = picture;
  if (current) drawScene();
}
