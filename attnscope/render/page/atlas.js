"use strict";
const element = (id) => document.getElementById(id);
const read = (name) => JSON.parse(element(`data-${name}`).textContent);
const config = read("config"), heads = read("scatter"), byName = new Map(heads.map((head) => [head.name, head]));

function make(tag, text = "", attributes = {}, ...children) {
  const made = document.createElement(tag);
  made.append(...(text === "" ? [] : [text]), ...children);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
}

const axes = new Map([["similarity 1", (head) => head.place?.[0]], ["similarity 2", (head) => head.place?.[1]],
  ["layer", (head) => head.layer], ["head", (head) => head.head],
  ...config.scores.map((name) => [name, (head) => head.scores[name]])]);

function scaled(name) {
  const values = heads.map(axes.get(name)), known = values.filter((value) => value != null);
  const low = Math.min(...known), high = Math.max(...known);
  return values.map((value) => (value == null ? 0 : high > low ? (100 * (value - low)) / (high - low) : 50));
}

function scatter() {
  const across = scaled(element("across").value), up = scaled(element("up").value);
  heads.forEach((head, number) => {
    head.point.setAttribute("cx", across[number].toFixed(2));
    head.point.setAttribute("cy", (100 - up[number]).toFixed(2));
  });
}

function search() {
  const words = element("search").value.toLowerCase().split(/\s+/).filter((word) => word && word !== "→" && word !== "->");
  for (const head of heads) {
    const text = `${head.name} ${head.role} ${head.pairs.join(" ")}`.toLowerCase();
    const found = words.every((word) => text.includes(word));
    head.point.classList.toggle("hidden", !found);
    head.line.classList.toggle("hidden", !found);
  }
}

function context(row, crossed) {
  const line = make("td");
  if (crossed) line.append(make("span", row.token, { class: "row" }), " ");
  let last = null;
  for (const [text, position, weight] of row.context) {
    if (last !== null && position > last + 1) line.append(" … ");
    else if (text.startsWith(" ")) line.append(" ");
    last = position;
    const token = make("span", text.trim());
    if (weight) {
      token.className = "key";
      token.style.setProperty("--weight", weight);
      token.title = weight.toFixed(3);
    }
    if (position === row.position && !crossed) token.classList.add("row");
    line.append(token);
  }
  return line;
}

const short = (value) => (value === null ? "–" : value.toFixed(2));
const percent = (share) => `${Number((100 * share).toPrecision(2))}%`;

function table(names, rows) {
  const header = make("tr", "", {}, ...names.map((name) => make("th", name, { scope: "col" })));
  return make("table", "", {}, header, ...rows.map((cells) => make("tr", "", {}, ...cells)));
}

function bars(histogram, label) {
  const top = Math.max(...histogram.shares, 1e-9);
  const drawn = make("div", "", { class: "bars", role: "img", "aria-label": label });
  histogram.shares.forEach((share, bin) => {
    const low = bin ? histogram.edges[bin - 1] : "", high = bin < histogram.edges.length ? histogram.edges[bin] : "";
    const bar = make("i", "", { title: `${low} to ${high}: ${percent(share)}` });
    bar.style.setProperty("--share", share / top);
    drawn.append(bar);
  });
  return [make("h3", label), drawn];
}

const counted = (shares) => shares.map((each) => make("td", `${each.tokens.join(" → ")} ${each.count} (${percent(each.expected)})`));

function open() {
  const name = decodeURIComponent(location.hash.slice(1)) || heads[0].name, place = element("head");
  if (!byName.has(name)) return place.replaceChildren(make("p", `no head ${name}`));
  for (const head of heads) for (const mark of [head.point, head.link]) mark.classList.toggle("chosen", head.name === name);
  const head = read(name), lists = [counted(head.queries), counted(head.keys), counted(head.pairs)];
  const tokens = Array.from({ length: Math.max(...lists.map((list) => list.length)) },
    (_, number) => lists.map((list) => list[number] ?? make("td")));
  const crossed = head.kind === "cross";
  const near = head.nearest.flatMap(([other, overlap]) => [make("a", other, { href: `#${other}` }), ` ${short(overlap)}  `]);
  place.replaceChildren(
    make("h2", name), make("p", head.role?.sentence ?? "no row counted"),
    make("p", "nearest: ", { class: "quiet" }, ...near),
    make("h3", `strongest rows, by the ${config.by}`),
    table(["score", "text", "context"], head.top.map((row) =>
      [make("td", short(row.score), { class: "number" }), make("td", row.text), context(row, crossed)])),
    make("h3", "all rows by score in ten equal parts, and random rows of each"),
    table(["tenth", "scores", "context"], head.deciles.flatMap((tenth, number) => tenth.rows.map((row, first) => [
      make("td", first ? "" : `${number + 1}`, { class: "number" }),
      make("td", first ? "" : `${short(tenth.lowest)} to ${short(tenth.highest)}`), context(row, crossed)]))),
    make("h3", "tokens of the 100 strongest rows: how many (and how many per cent of all rows)"),
    table(["row's token", "heaviest key", "both"], tokens),
    ...bars(head.distances, "attention by distance of the key, from 33 tokens earlier to 33 later"),
    ...bars(head.weights, "rows by their largest weight outside self and first token, 0 to 1"),
    ...bars(head.entropy, "rows by their normalized entropy, 0 to 1"));
  document.title = `${name} · ${config.title}`;
}

for (const head of heads) {
  head.point = document.createElementNS("http://www.w3.org/2000/svg", "circle");
  head.point.setAttribute("r", Math.max(0.7, 2 - heads.length / 500));
  const title = document.createElementNS("http://www.w3.org/2000/svg", "title");
  title.textContent = `${head.name}, ${head.role}`;
  head.point.append(title);
  head.point.addEventListener("click", () => { location.hash = head.name; });
  element("scatter").append(head.point);
  head.link = make("a", head.name, { href: `#${head.name}` });
  head.line = make("li", "", {}, head.link, make("span", ` ${head.role} · ${head.pairs.slice(0, 2).join(", ")}`, { class: "quiet" }));
  element("list").append(head.line);
}
for (const id of ["across", "up"]) {
  element(id).append(...[...axes.keys()].map((name) => make("option", name)));
  element(id).addEventListener("change", scatter);
}
element("up").value = "similarity 2";
element("notes").append(...config.notes.map((note) => make("li", note)));
element("search").addEventListener("input", search);
addEventListener("hashchange", open);
scatter();
open();
