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
  const plane = ["across", "up"].every((id) => element(id).value.startsWith("similarity"));
  const alike = heads.some((head) => head.name.includes("-")) ? "near ones of a kind attend alike" : "near ones attend alike";
  element("caption").textContent = `Each point is a head${plane ? `; ${alike}` : ""}.`;
  nameChosen();
}

function nameChosen() {
  const chosen = byName.get(asked());
  label.textContent = chosen && !chosen.point.classList.contains("hidden") ? chosen.name : "";
  if (!chosen) return;
  const [x, y] = ["cx", "cy"].map((axis) => Number(chosen.point.getAttribute(axis)));
  for (const [key, value] of [["x", x > 80 ? x - 4 : x + 4], ["y", y + 1.5], ["text-anchor", x > 80 ? "end" : "start"]]) {
    label.setAttribute(key, value);
  }
}

function search() {
  const typed = element("search").value.toLowerCase().replace(/\s*(->|→)\s*/g, " → ").trimStart();
  const terms = typed.match(/\S+ → \S*|\S+/g) ?? [], has = (text, term) => ` ${text.toLowerCase()}`.includes(` ${term}`);
  let count = 0;
  for (const head of heads) {
    const found = terms.every((term) => [head.name, head.role, ...head.pairs].some((text) => has(text, term)));
    const first = head.pairs.filter((pair) => terms.some((term) => has(pair, term)));
    const pairs = [...new Set([...first, ...head.pairs])].slice(0, 2).map((pair) => make("span", pair, { class: "pair" }));
    const role = head.role === "none" ? "no clear role" : head.role;
    head.line.replaceChildren(head.link, make("span", ` ${role} `, { class: "quiet" }), ...pairs);
    for (const mark of [head.point, head.line]) mark.classList.toggle("hidden", !found);
    count += found;
  }
  nameChosen();
  element("found").textContent = `${count} of ${heads.length} heads, and frequent tokens of their strongest rows: row → key`;
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

function bars(histogram, label, ends = ["0", "0.5", "1"]) {
  const top = Math.max(...histogram.shares, 1e-9);
  const drawn = make("div", "", { class: "bars", role: "img", "aria-label": label });
  histogram.shares.forEach((share, bin) => {
    const low = bin ? histogram.edges[bin - 1] : "", high = bin < histogram.edges.length ? histogram.edges[bin] : "";
    const bar = make("i", "", { title: `${low} to ${high}: ${percent(share)}` });
    bar.style.setProperty("--share", share / top);
    drawn.append(bar);
  });
  return [make("h3", label), drawn, make("div", "", { class: "ends quiet" }, ...ends.map((end) => make("span", end)))];
}

const counted = (shares) => shares.map((each) => make("td", `${each.tokens.join(" → ")} ${each.count} (${percent(each.expected)})`));

function legend() {
  const key = make("span", "keys", { class: "key" });
  key.style.setProperty("--weight", 0.6);
  return make("p", "", { class: "quiet" }, make("span", "row", { class: "row" }), " the token that attends, ", key, " where it attends, by weight");
}

const asked = () => decodeURIComponent(location.hash.slice(1)) || heads[0].name;

function open() {
  const chosen = asked(), place = element("head");
  nameChosen();
  for (const head of heads) for (const mark of [head.point, head.link]) mark.classList.toggle("chosen", head.name === chosen);
  if (!byName.has(chosen)) return place.replaceChildren(make("p", `no head ${chosen}`));
  const head = read(chosen), lists = [counted(head.queries), counted(head.keys), counted(head.pairs)];
  const tokens = Array.from({ length: Math.max(...lists.map((list) => list.length)) },
    (_, number) => lists.map((list) => list[number] ?? make("td")));
  const crossed = head.kind === "cross";
  const near = head.nearest.flatMap(([other, overlap]) => [make("a", other, { href: `#${other}` }), ` ${short(overlap)}  `]);
  place.replaceChildren(
    make("h2", chosen), make("p", head.role?.sentence ?? "no row counted"),
    make("p", "nearest heads, by the weight that they give the same keys: ", { class: "quiet" }, ...near),
    make("h3", `strongest rows, by the ${config.by}`), legend(),
    table(["score", "text", "context"], head.top.map((row) =>
      [make("td", short(row.score), { class: "number" }), make("td", row.text), context(row, crossed)])),
    make("h3", "all rows by score in ten equal parts, and random rows of each"),
    table(["tenth", "scores", "context"], head.deciles.flatMap((tenth, number) => tenth.rows.map((row, first) => [
      make("td", first ? "" : `${number + 1}`, { class: "number" }),
      make("td", first ? "" : `${short(tenth.lowest)} to ${short(tenth.highest)}`), context(row, crossed)]))),
    make("h3", "tokens of the 100 strongest rows: how many (in parentheses: their share by chance)"),
    table(["row's token", "heaviest key", "both"], tokens),
    ...bars(head.distances, "attention by distance of the key", ["33 or more tokens earlier", "the row itself", "33 or more later"]),
    ...bars(head.weights, "rows by their largest weight outside self and first token"),
    ...bars(head.entropy, "rows by their normalized entropy"));
  document.title = `${chosen} · ${config.title}`;
}

const drawing = (tag) => document.createElementNS("http://www.w3.org/2000/svg", tag), label = drawing("text");
for (const head of heads) {
  head.point = drawing("circle");
  head.point.setAttribute("r", Math.max(0.7, 2 - heads.length / 500));
  const title = drawing("title");
  title.textContent = `${head.name}, ${head.role}`;
  head.point.append(title);
  head.point.addEventListener("click", () => { location.hash = head.name; });
  element("scatter").append(head.point);
  head.link = make("a", head.name, { href: `#${head.name}` });
  head.line = make("li");
  element("list").append(head.line);
}
for (const id of ["across", "up"]) {
  element(id).append(...[...axes.keys()].map((name) => make("option", name)));
  element(id).addEventListener("change", scatter);
}
element("scatter").append(label);
element("up").value = "similarity 2";
element("notes").append(...config.notes.map((note) => make("li", note)));
element("search").addEventListener("input", search);
addEventListener("hashchange", open);
scatter();
search();
open();
