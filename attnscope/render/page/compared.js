"use strict";
// The heads that are compared on one token: each keeps its colour, and is ticked on or off.

const MOST = 12;
const compared = []; // kind, row, head, slot (of the colour), on, bytes, and the sizes and axes that `current` has too

// The heads whose lines are drawn: those that are ticked, or else the open one.
function drawnHeads() {
  const on = compared.filter((each) => each.on);
  return on.length ? on : [{ ...current, slot: 0 }];
}

const sameHead = (row, head) => (each) => each.row === row && each.head === head;

async function tick(row = state.row, head = state.head) {
  const found = compared.find(sameHead(row, head));
  if (found) found.on = !found.on;
  else await addHead(row, head);
  const one = compared.find(sameHead(row, head));
  if (one) say(`${nameOf(one)} ${one.on ? "ticked" : "not ticked"}`);
  drawHead();
}

async function addHead(row, head) {
  const { between } = state, one = await readHead(row, head);
  if (one.kind !== state.kind || between !== state.between || compared.some(sameHead(row, head))) return; // much may have changed meanwhile
  if (compared.length && compared[0].axes !== one.axes) compared.length = 0; // of other tokens
  if (compared.length === MOST) {
    const spare = compared.findIndex((each) => !each.on);
    if (spare < 0) return say(`${MOST} heads are compared at most: take away the tick of one first`);
    compared.splice(spare, 1);
  }
  const slots = new Set(compared.map((each) => each.slot));
  one.slot = [...Array(MOST).keys()].find((each) => !slots.has(each));
  compared.push({ ...one, on: true });
  if (state.mode === "map") changeMode(hasRoom() ? "both" : "lines");
}

// The heads of the layer or, of many, those around the open one.
async function tickLayer() {
  compared.length = 0;
  const count = layerNow().heads, first = Math.max(0, Math.min(state.head - MOST / 2, count - MOST));
  const last = Math.min(first + MOST, count);
  for (let head = first; head < last; head++) await addHead(state.row, head);
  say(`${last - first} of ${count} heads of layer ${layerNow().layer} are compared`);
  drawHead();
}

function tickNone() {
  compared.length = 0;
  drawHead();
}

function drawChips() {
  const known = new Map([...element("chips").children].map((chip) => [chip.dataset.name, chip]));
  const chips = compared.map((each) => {
    const name = nameOf(each);
    const chip = known.get(name) ?? newChip(each, name);
    chip.firstChild.checked = each.on;
    chip.style.setProperty("--own", `var(--head${each.slot})`);
    return chip;
  });
  if (chips.length !== known.size || chips.some((chip) => !chip.parentNode)) element("chips").replaceChildren(...chips);
  const own = compared.find(sameHead(state.row, state.head));
  element("tick").setAttribute("aria-pressed", Boolean(own?.on));
  element("clear").hidden = compared.length === 0;
  element("whole").hidden = layerNow().heads < 2;
  element("whole").textContent = layerNow().heads > MOST ? `${MOST} heads of the layer` : "the whole layer";
}

function newChip({ row, head }, name) {
  const box = made("input", { type: "checkbox" });
  box.addEventListener("change", () => tick(row, head));
  return made("label", { class: "chip", "data-name": name }, box, made("i", { class: "own" }), name);
}

// The colour of the open head: its own among those compared, that of a single head, or none.
function openColour() {
  const own = compared.find((each) => each.on && sameHead(state.row, state.head)(each));
  if (own) return `var(--head${own.slot})`;
  return compared.some((each) => each.on) ? "var(--quiet)" : "var(--head0)";
}

// How much each drawn head gives to one pair of tokens, largest first.
function sharesOf(row, column) {
  return drawnHeads()
    .map((each) => ({ ...each, byte: each.bytes[row * each.columns + column] }))
    .sort((a, b) => (b.byte === CLOSED ? -1 : SIZE[b.byte]) - (a.byte === CLOSED ? -1 : SIZE[a.byte]));
}
