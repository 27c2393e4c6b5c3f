"use strict";
// A drawing context that writes SVG: what the pictures are drawn with on a canvas, they draw on this one as well.

const SVG = element("blank").namespaceURI; // no address stands in this page, not even as a name

class Vector {
  constructor(width, height) {
    this.page = document.implementation.createDocument(SVG, "svg"); // apart from this page, so that nothing is loaded
    this.root = this.page.documentElement;
    this.set(this.root, { width, height, viewBox: `0 0 ${width} ${height}` });
    Object.assign(this, { fillStyle: "#000", strokeStyle: "#000", lineWidth: 1, font: "10px sans-serif",
      textAlign: "left", textBaseline: "alphabetic", moves: "", path: "", kept: [], patterns: 0 });
    this.ruler = made("canvas").getContext("2d");
  }

  set(node, attributes) {
    for (const [name, value] of Object.entries(attributes))
      node.setAttribute(name, typeof value === "number" ? +value.toFixed(3) : value);
    return node;
  }

  add(tag, attributes, parent = this.root) {
    const node = this.set(this.page.createElementNS(SVG, tag), attributes);
    if (this.moves && parent === this.root) node.setAttribute("transform", this.moves);
    parent.append(node);
    return node;
  }

  save() {
    const { fillStyle, strokeStyle, lineWidth, font, textAlign, textBaseline, moves } = this;
    this.kept.push({ fillStyle, strokeStyle, lineWidth, font, textAlign, textBaseline, moves });
  }

  restore() { Object.assign(this, this.kept.pop()); }
  translate(x, y) { this.moves += `translate(${+x.toFixed(3)} ${+y.toFixed(3)})`; }
  rotate(angle) { this.moves += `rotate(${(angle * 180) / Math.PI})`; }
  beginPath() { this.path = ""; }
  moveTo(x, y) { this.path += `M${+x.toFixed(2)} ${+y.toFixed(2)}`; }
  lineTo(x, y) { this.path += `L${+x.toFixed(2)} ${+y.toFixed(2)}`; }
  rect() {} // it only ever bounds what is in view, and here all is
  clip() {}

  stroke() {
    this.add("path", { d: this.path, stroke: this.strokeStyle, "stroke-width": this.lineWidth });
  }

  fillRect(x, y, width, height) {
    if (width > 0 && height > 0) this.add("rect", { x, y, width, height, fill: this.fillStyle });
  }

  strokeRect(x, y, width, height) {
    this.add("rect", { x, y, width, height, fill: "none", stroke: this.strokeStyle, "stroke-width": this.lineWidth });
  }

  measureText(text) {
    this.ruler.font = this.font;
    return this.ruler.measureText(text);
  }

  fillText(text, x, y) {
    const [, weight, size, family] = this.font.match(/^(bold )?([\d.]+)px (.*)$/);
    const node = this.add("text", { x, y: this.textBaseline === "middle" ? y + 0.35 * size : y, fill: this.fillStyle,
      "font-size": +size, "font-family": family, "font-weight": weight ? "bold" : "normal",
      "text-anchor": { left: "start", right: "end", center: "middle" }[this.textAlign] });
    node.textContent = text;
  }

  createPattern(tile) {
    const id = `pattern${this.patterns++}`, { width, height } = tile;
    const pattern = this.add("pattern", { id, width, height, patternUnits: "userSpaceOnUse" });
    this.add("image", { width, height, href: tile.toDataURL() }, pattern);
    return `url(#${id})`;
  }

  // Enlarged beforehand, because many programs would blur single pixels.
  drawImage(canvas, x, y, width, height) {
    const times = Math.max(1, Math.min(16, Math.floor(2048 / Math.max(canvas.width, canvas.height))));
    const large = made("canvas", { width: canvas.width * times, height: canvas.height * times });
    const context = large.getContext("2d");
    context.imageSmoothingEnabled = false;
    context.drawImage(canvas, 0, 0, large.width, large.height);
    this.add("image", { x, y, width, height, preserveAspectRatio: "none", "image-rendering": "pixelated",
      href: large.toDataURL() });
  }

  text() { return new XMLSerializer().serializeToString(this.page); }
}
