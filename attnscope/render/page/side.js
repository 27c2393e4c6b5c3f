"use strict";
// Beside the pictures: the text, the pinned token and what it looks at, the head's role and figures, and the
// heads that are worth a look.

const SHOWN = 10;
const nothing = (PAGE.top * (0.5 / LARGEST) ** PAGE.power).toPrecision(1); // what is less has the byte 0

function drawSide() {
  const [role, sentence, figures] = layerNow().about[state.head] ?? ["", "", []];
  element("role").textContent = [role, sentence].filter(Boolean).join(": ");
  element("measured").hidden = !figures.length;
  element("figures").replaceChildren(...figures.map(([name, value, baseline, unit]) => made("tr", {},
    made("th", { scope: "row" }, name, made("small", {}, PAGE.meanings[name])), made("td", {}, `${value} ${unit}`.trim()), made("td", {}, baseline || "–"))));
  for (const button of element("worth").querySelectorAll("button"))
    button.setAttribute("aria-current", button.dataset.head === [state.kind, layerNow().layer, state.head].join());
  element("side").style.setProperty("--one", openColour());
  drawText();
  drawLists();
  drawColumns();
  drawScene();
}

function buildWorth() {
  element("advice").hidden = !PAGE.worth.length;
  element("worth").append(...PAGE.worth.map(([kind, layer, head]) => {
    const found = PAGE.kinds[kind].layers.find((one) => one.layer === layer);
    const where = PAGE.kinds.length > 1 ? ` ${PAGE.kinds[kind].kind}` : "";
    const button = made("button", { type: "button", "data-head": [kind, layer, head].join() },
      made("b", {}, `L${layer}H${head}${where}`), found.about[head]?.[1] || "");
    button.addEventListener("click", () => openKind(kind, layer, head));
    return made("li", {}, button);
  }));
}

// The text as the model read it. A token of it can be chosen; a bar under each is its weight with the chosen one.
function drawText() {
  const { axes } = current;
  if (drawText.axes !== axes) {
    drawText.axes = axes;
    element("reading").replaceChildren(...(axes.square ? [newText("Tokens", axes.queries, "query")]
      : [newText("Tokens that look", axes.queries, "query"), newText("Tokens that are looked at", axes.keys, "key")]).flat());
  }
  const full = fullWord();
  for (const list of document.querySelectorAll(".text")) {
    const side = axes.square ? state.side : list.dataset.side;
    const first = list.querySelector("[role=option]"), options = [...list.querySelectorAll("[role=option]")];
    const here = options.some((one) => +one.dataset.at === state.token) && side === state.side;
    for (const one of options) {
      const i = +one.dataset.at;
      const chosen = state.token === i && side === state.side;
      one.setAttribute("aria-selected", chosen);
      one.tabIndex = chosen || (one === first && !here) ? 0 : -1;
      const row = state.side === "query" ? state.token : i, column = state.side === "query" ? i : state.token;
      const other = state.token !== null && (axes.square || side !== state.side);
      const weight = !other ? 0 : full ? Math.min(weightAt(i) / full, 1) : strengthOf({ ...current }, row, column);
      one.style.setProperty("--tall", `${Math.round(5 * weight)}px`);
    }
  }
}

// Parts of the picture are not listed: they are chosen in the picture.
function newText(title, places, side) {
  const leftwards = places.filter(([text]) => /[\u0590-\u08ff\ufb1d-\ufefc]/.test(text)).length * 2 > places.length;
  const list = made("div", { role: "listbox", class: "text", "aria-label": title, "data-side": side,
    dir: leftwards ? "rtl" : "ltr" }); // Hebrew and Arabic are read from the right
  places.forEach((place, i) => {
    const [text, number, glued] = place, own = wrote(place);
    if (fine(place) || place[3] === null) return; // or silence behind a sound
    if (list.firstChild && !glued) list.append(" ");
    list.append(made("span", { role: "option", "data-at": i, class: own ? "wrote" : "",
      "aria-label": `${text}, token ${number}${own ? ", written by the model" : ""}` }, isolated(glued === 2 ? "·" : text)));
  });
  return made("div", list.firstChild ? {} : { hidden: "" }, made("h2", {}, title), list);
}

// What the pinned token looks at, and who looks at it, ranked.
function drawLists() {
  const title = element("token"), lists = element("lists");
  if (state.token === null) {
    title.textContent = "No token chosen";
    lists.replaceChildren(made("p", { class: "quiet" }, "Choose one above, in the map or in the lines, or press j."));
    return;
  }
  const { axes, columns } = current;
  const [text, number] = (state.side === "query" ? axes.queries : axes.keys)[state.token];
  title.replaceChildren(isolated(text), ` (token ${number}) in ${headName()}`);
  lists.replaceChildren();
  if (state.side === "query" || axes.square)
    lists.append(...ranking("looks at", axes.keys, "key", (i) => state.token * columns + i));
  if (state.side === "key" || axes.square)
    lists.append(...ranking("is looked at by", axes.queries, "query", (i) => i * columns + state.token));
}

function ranking(verb, places, side, at) {
  const found = places
    .map(([text, number], i) => ({ text, number, i, byte: current.bytes[at(i)] }))
    .filter(({ byte }) => byte !== CLOSED)
    .sort((a, b) => b.byte - a.byte || a.i - b.i);
  const list = made("ol"), shown = found.slice(0, SHOWN).filter(({ byte }) => byte > 0);
  for (const { text, number, i, byte } of shown) {
    const bar = made("i");
    bar.style.setProperty("--share", WEIGHT[byte] / PAGE.top);
    const button = made("button", { type: "button" }, made("span", { class: "place" }, isolated(text), behind([text, number])),
      made("span", {}, shortly(WEIGHT[byte])), bar);
    button.addEventListener("click", () => pin(i, sideOf(i, side)));
    list.append(made("li", {}, button));
  }
  const more = found.length - shown.length, next = found[shown.length]?.byte;
  const most = next ? `at most ${shortly(WEIGHT[next])}` : `less than ${nothing}`;
  return [made("h3", {}, verb), list, ...(more ? [made("p", { class: "quiet" }, `${shown.length ? `and ${more} more` : `all ${more}`}, each ${most}`)] : [])];
}
