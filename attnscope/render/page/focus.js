"use strict";
// The pinned token: what it looks at, and who looks at it, ranked.

const SHOWN = 10;

function drawFocus() {
  const title = document.getElementById("token"), lists = document.getElementById("lists");
  lists.replaceChildren();
  if (state.token === null) {
    title.textContent = "No token pinned";
    const hint = document.createElement("p");
    hint.className = "quiet";
    hint.textContent = "Click a token or a cell, or press j.";
    lists.append(hint);
    return;
  }
  const { axes, rows, columns } = current;
  const places = state.side === "query" ? axes.queries : axes.keys;
  const [text, number] = places[state.token];
  title.replaceChildren(isolated(text), ` (token ${number})`);
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
  const heading = document.createElement("h3");
  heading.textContent = verb;
  const list = document.createElement("ol");
  for (const { text, number, i, byte } of found.slice(0, SHOWN)) {
    const item = document.createElement("li");
    const name = document.createElement("bdi");
    name.textContent = `${text} ${number}`;
    const meter = document.createElement("meter");
    meter.max = PAGE.top;
    meter.value = WEIGHT[byte];
    item.append(name, shortly(WEIGHT[byte]), meter);
    item.addEventListener("click", () => pin(i, current.axes.square ? state.side : side));
    list.append(item);
  }
  const rest = document.createElement("p");
  rest.className = "quiet";
  if (found.length > SHOWN)
    rest.textContent = `and ${found.length - SHOWN} more, each at most ${shortly(WEIGHT[found[SHOWN].byte])}`;
  return [heading, list, rest];
}

const shortly = (weight) => (weight >= 0.0995 || weight === 0 ? weight.toFixed(2) : weight.toPrecision(1));

function isolated(text) {
  const element = document.createElement("bdi");
  element.textContent = text;
  return element;
}
