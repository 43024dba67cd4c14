"use strict";
// Small helpers of the page: elements, numbers as people read them, colours, tips. Text never becomes markup.

const $ = id => document.getElementById(id);
const SVG = "http://www.w3.org/2000/svg";

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "tip") node.dataset.tip = value;
    else if (name === "css") for (const [key, one] of Object.entries(value)) node.style.setProperty(key, one);
    else node.setAttribute(name, value === true ? "" : value);
  }
  for (const child of children.flat()) if (child !== null && child !== undefined) node.append(child);
  return node;
}
const el = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);
const svg = (tag, attributes, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);

// 1234567 → "1.23 M"
function count(value, digits = 3) {
  if (value === null || value === undefined || !isFinite(value)) return "–";
  for (const [size, unit] of [[1e9, " G"], [1e6, " M"], [1e4, " k"]]) {
    if (Math.abs(value) >= size) {
      const scale = unit === " k" ? 1e3 : size;
      return (value / scale).toPrecision(digits).replace(/\.0*$|(\.\d*[1-9])0+$/, "$1") + unit;
    }
  }
  return Math.abs(value) >= 100 || Number.isInteger(value) ? Math.round(value).toString() : value.toPrecision(2);
}
function bytes(value) {
  if (value === null || value === undefined) return "–";
  for (const [size, unit] of [[2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"]]) {
    if (value >= size) return `${(value / size).toPrecision(3)} ${unit}`;
  }
  return `${Math.round(value)} B`;
}
function ms(value) {
  if (value === null || value === undefined || !isFinite(value)) return "–";
  if (value >= 60000) return `${(value / 60000).toFixed(1)} min`;
  if (value >= 1000) return `${(value / 1000).toFixed(2)} s`;
  return value >= 100 ? `${value.toFixed(0)} ms` : value >= 10 ? `${value.toFixed(1)} ms` : `${value.toFixed(2)} ms`;
}
const gbs = value => value === null || value === undefined ? "–" : `${value >= 10 ? value.toFixed(0) : value.toFixed(value >= 1 ? 1 : 2)} GB/s`;

const colour = name => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
const STAGES = {queue: "waits", prefill: "prefill", transfer: "KV transfer", decode: "decode", router: "router"};

function transportColour(transport) {
  if (!transport) return "var(--queue)";
  if (transport.includes("rdma")) return "var(--rdma)";
  return transport.includes("shm") ? "var(--shm)" : "var(--tcp)";
}

function legend(node, entries) {
  node.replaceChildren(...entries.map(([name, value]) => el("span", {css: {"--swatch": value}}, name)));
}

// The value that so much of the sorted list is below.
function percentile(sorted, share) {
  if (!sorted.length) return null;
  return sorted[Math.min(sorted.length - 1, Math.floor(share * sorted.length))];
}

// A canvas of so many CSS pixels, sharp on every screen.
function paper(canvas, height) {
  const scale = window.devicePixelRatio || 1, width = canvas.clientWidth || 600;
  canvas.style.height = `${height}px`;
  canvas.width = Math.round(width * scale);
  canvas.height = Math.round(height * scale);
  const pen = canvas.getContext("2d");
  pen.scale(scale, scale);
  return [pen, width];
}

document.addEventListener("pointermove", event => {
  const owner = event.target instanceof Element ? event.target.closest("[data-tip]") : null;
  $("tip").hidden = !owner;
  if (!owner) return;
  $("tip").textContent = owner.dataset.tip;
  const box = $("tip").getBoundingClientRect();
  $("tip").style.left = `${Math.min(event.clientX + 12, innerWidth - box.width - 8)}px`;
  $("tip").style.top = `${Math.min(event.clientY + 14, innerHeight - box.height - 8)}px`;
});
