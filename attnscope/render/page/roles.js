"use strict";
// The overview with one cell a head: the letter of its role on the role's colour, or a score's colour.

const CLEAR_SIDE = 12; // pixels; six rows of a smaller thumbnail cannot be told apart

// What colours the cells: the choice or, where thumbnails are too small, the roles; empty for thumbnails.
function cellsBy(side) {
  const chosen = element("by").value, kind = PAGE.kinds[state.kind];
  if (chosen !== "auto") return chosen === "map" ? "" : chosen;
  return side < CLEAR_SIDE && Object.keys(kind.roles).length ? "role" : "";
}

function drawCells(context, by, pitch, side) {
  const colourOf = by === "role" ? null : scored(by), size = Math.min(side * 0.8, 13);
  context.font = font(size);
  context.textAlign = "center";
  context.textBaseline = "middle";
  overview.layers.forEach((layer, row) => {
    for (let head = 0; head < layer.heads; head++) {
      const x = overview.left + pitch * head, y = overview.top + pitch * row;
      const [letter, ground, ink] = colourOf ? ["", colourOf(layer, head)] : PAGE.letters[layer.about[head]?.[0] ?? ""];
      context.fillStyle = ground ?? css("--ground");
      context.fillRect(x, y, side, side);
      context.fillStyle = ink ?? css("--quiet");
      context.fillText(letter, x + side / 2, y + side / 2 + size * 0.05);
    }
  });
  if (by === "role") element("shades").replaceChildren(...roleKey());
}

// What each letter means and how many heads have it.
function roleKey() {
  return Object.entries(PAGE.kinds[state.kind].roles).flatMap(([role, words]) => {
    const [letter, ground, ink] = PAGE.letters[role], chip = made("i", { class: "letter" }, letter);
    Object.assign(chip.style, { background: ground ?? "", color: ink ?? "" });
    return [made("span", { class: "role" }, chip, ` ${words}`), " "];
  });
}

// The colour of each head's score, from 0 to 1 or the largest; what ends the scale stands below.
function scored(name) {
  const scores = overview.layers.map((layer) => Array.from({ length: layer.heads },
    (_, head) => layer.about[head]?.[2].find((each) => each[0] === name)));
  const values = scores.flat().filter(Boolean).map((each) => +each[1]), unit = scores.flat().find(Boolean)?.[3] ?? "";
  const low = Math.min(0, ...values), high = unit ? Math.max(...values) : 1, colours = PAGE.cmaps[state.cmap];
  element("shades").textContent = `Colour scale: ${name}, ${low} to ${high} ${unit}`.trim() + ".";
  return (layer, head) => {
    const found = scores[overview.layers.indexOf(layer)][head];
    if (!found) return null;
    const at = Math.round((255 * Math.min(Math.max(+found[1] - low, 0), high - low)) / (high - low || 1));
    return `#${colours.slice(6 * at, 6 * at + 6)}`;
  };
}
