"use strict";
// What all pictures share: elements, sharp pixels, the theme's colours, text that is cut.

const element = (id) => document.getElementById(id);

// A new element; its text is text and nothing else.
function made(tag, attributes = {}, ...inside) {
  const one = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) one.setAttribute(name, value);
  one.append(...inside);
  return one;
}

// The number behind a place's text; a place that has no text is its number alone, and a range begins with it.
const behind = ([text, number]) => (new RegExp(`^${number}($|-\\d+($| ))`).test(text) || isMoment(text) ? "" : ` ${number}`);

// Whether a label is a time of the sound, which no other place has.
const isMoment = (text) => Boolean(PAGE.scene?.heard) && /^\d[\d.–]* s( ·|$)/.test(text);

const isolated = (text) => made("bdi", {}, text);

const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// Give a canvas a size in CSS pixels, sharp on any screen; its context, in CSS pixels.
function sized(canvas, width, height) {
  const sharp = window.devicePixelRatio || 1;
  const across = Math.round(width * sharp), down = Math.round(height * sharp);
  if (canvas.width !== across || canvas.height !== down) {
    canvas.width = across;
    canvas.height = down;
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
  }
  const context = canvas.getContext("2d");
  context.setTransform(sharp, 0, 0, sharp, 0, 0);
  context.clearRect(0, 0, width, height);
  return context;
}

const shortly = (weight) => (Math.abs(weight) >= 0.0995 || weight === 0 ? weight.toFixed(2) : weight.toPrecision(1));
const closely = (weight) => weight.toFixed(Math.abs(weight) < 0.01 ? 5 : 3);

// How tall the part of a picture that is in view may be.
function tallest(stage) {
  const limit = parseFloat(getComputedStyle(stage).maxHeight);
  return Math.min(limit || Infinity, window.innerHeight);
}

// A picture of one pixel a cell, to be drawn enlarged; `look` has the pixel of each byte, row by row.
function cells(bytes, rows, columns, look) {
  const canvas = document.createElement("canvas");
  canvas.width = columns;
  canvas.height = rows;
  const context = canvas.getContext("2d");
  const image = context.createImageData(columns, rows);
  const pixels = new Uint32Array(image.data.buffer);
  for (let row = 0, i = 0; row < rows; row++) {
    const pixelOf = look[row];
    for (let column = 0; column < columns; column++, i++) pixels[i] = pixelOf[bytes[i]];
  }
  context.putImageData(image, 0, 0);
  return canvas;
}

// The hatched ground that shows where the mask closed a cell.
function hatching(context) {
  const tile = document.createElement("canvas");
  tile.width = tile.height = 6;
  const brush = tile.getContext("2d");
  brush.fillStyle = css("--closed");
  brush.fillRect(0, 0, 6, 6);
  brush.strokeStyle = css("--stripe");
  for (const x of [-6, 0, 6]) {
    brush.moveTo(x - 1, 7);
    brush.lineTo(x + 7, -1);
  }
  brush.stroke();
  return context.createPattern(tile, "repeat");
}

// How wide the widest of some places' labels is.
function longestLabel(context, places, size) {
  const write = writer(context, size), texts = new Map(places.map((place) => [place[0], place])); // each text once
  write(places.at(-1));
  const number = context.measureText(behind(places.at(-1))).width;
  return number + Math.max(...[...texts.values()].map((place) => {
    write(place);
    return context.measureText(place[0]).width;
  }));
}

// What sets the font of a place's label, and only where it is another than that of the place before.
function writer(context, size) {
  let bold = null;
  return (place) => {
    if (bold !== (bold = wrote(place))) context.font = font(size, bold);
  };
}

// A place's text, cut to the room that its number leaves, and the number behind it, or before it.
function writeLabel(context, place, x, y, room, before = false) {
  const number = behind(place), shown = `\u2068${cutTo(context, place[0], room - context.measureText(number).width)}\u2069`;
  context.fillText((before ? `${number} ${shown}` : `${shown}${number}`).trim(), x, y);
}

function cutTo(context, text, width) {
  if (context.measureText(text).width <= width) return text;
  const characters = [...text];
  while (characters.length && context.measureText(characters.join("") + "…").width > width) characters.pop();
  return characters.join("") + "…";
}

const font = (size, bold = false) => `${bold ? "bold " : ""}${size}px system-ui, "Segoe UI", "Noto Sans", "DejaVu Sans", sans-serif`;
