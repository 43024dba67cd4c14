"use strict";
// What each worker holds and does: KV memory as a grid of cells, and its steps second by second.

const KV_KINDS = [["used", "held by sequences", "used"], ["reserved", "promised to prompts on their way", "reserved"], ["cached", "cached, free to take", "cached"]];
const MOST_CELLS = 480, MOST_ROWS = 12;

const byRole = workers => [...workers].sort((a, b) => (b.role === "prefill") - (a.role === "prefill") || a.name.localeCompare(b.name, undefined, {numeric: true}));

function canvasFor(node, index, height, label) {
  const canvas = node.children[index] || node.appendChild(el("canvas", {role: "img"}));
  canvas.setAttribute("aria-label", label);
  return paper(canvas, height);
}

// Cells are counted, not placed: a worker says how many blocks it holds, not which.
function drawCells(w, pen, width) {
  const cells = Math.max(1, Math.min(MOST_CELLS, w.kv.blocks)), each = w.kv.blocks / cells;
  const columns = Math.max(24, Math.floor(width / 11)), size = width / columns, rows = Math.ceil(cells / columns);
  let next = 0;
  const paint = (number, tint) => {
    pen.fillStyle = tint;
    for (const end = Math.min(cells, next + number); next < end; ++next) {
      pen.beginPath();
      pen.roundRect((next % columns) * size + 1, Math.floor(next / columns) * size + 1, size - 2, size - 2, 2);
      pen.fill();
    }
  };
  for (const [key, , tint] of KV_KINDS) paint(w.kv[key] > 0 ? Math.max(1, Math.round(w.kv[key] / each)) : 0, colour(tint));
  paint(cells - next, colour("free"));
  return rows * size;
}

function kvHeight(w, width) {
  const cells = Math.max(1, Math.min(MOST_CELLS, w.kv.blocks)), columns = Math.max(24, Math.floor(width / 11));
  return Math.ceil(cells / columns) * (width / columns);
}

function landingLine(w) {
  const h = w.handoff, total = h.granted_slots + h.free_slots + h.quarantined_slots;
  if (!total) return h.jobs ? h.jobs === 1 ? "1 prompt on its way" : `${h.jobs} prompts on their way` : "";
  return `landing ${h.granted_slots} of ${total} slots written${h.quarantined_slots ? `, ${h.quarantined_slots} in quarantine` : ""}, ${h.tickets} tickets`;
}

function sync(node, workers, make) {
  const wanted = workers.map(w => w.name).join("\n");
  if (node.dataset.workers !== wanted) {
    node.dataset.workers = wanted;
    node.replaceChildren(...workers.map(make));
  }
}

function drawKv() {
  const workers = byRole(model.state?.workers || []).filter(w => w.kv && w.kv.blocks).slice(0, MOST_ROWS), node = $("kv");
  legend($("kv-legend"), [...KV_KINDS.map(([, words, tint]) => [words.split(",")[0].replace("promised to prompts on their way", "promised"), `var(--${tint})`]), ["free", "var(--free)"]]);
  if (!workers.length) {
    node.dataset.workers = "";
    return node.replaceChildren(el("p", {class: "empty"}, "No worker has said yet what it holds."));
  }
  sync(node, workers, () => el("div", {}, el("div", {class: "worker-line"}), el("div", {})));
  workers.forEach((w, i) => {
    const [line, holder] = node.children[i].children, tokens = w.kv.blocks * w.kv.tokens_per_block;
    line.replaceChildren(el("span", {}, el("b", {}, w.name), " ", el("span", {class: "muted"}, landingLine(w))),
      el("span", {class: "muted"}, `${count(w.kv.used * w.kv.tokens_per_block)} of ${count(tokens)} tokens, ${bytes(tokens * w.kv.bytes_per_token)}${w.kv.leaked ? `, ${w.kv.leaked} leaked!` : ""}`));
    const [pen, width] = canvasFor(holder, 0, kvHeight(w, holder.clientWidth || 500), `${w.name}: ${w.kv.used} of ${w.kv.blocks} blocks held, ${w.kv.cached} cached`);
    holder.dataset.tip = `${w.name}: a cell is ${count(w.kv.blocks / Math.min(MOST_CELLS, w.kv.blocks))} blocks\n` + KV_KINDS.map(([key, words]) => `${count(w.kv[key])} blocks ${words}`).join("\n");
    drawCells(w, pen, width);
  });
}

// ---- steps
function drawStrip(samples, pen, width, height) {
  const n = SAMPLES_KEPT, step = width / n, from = n - samples.length, base = height - 1;
  const sum = s => (s.prompt_tokens_per_s || 0) + (s.generation_tokens_per_s || 0), top = Math.max(...samples.map(sum), 1);
  const slowest = Math.max(...samples.map(s => s.last_step_ms || 0), 1);
  pen.fillStyle = colour("line");
  pen.fillRect(0, base, width, 1);
  const line = [];
  samples.forEach((s, i) => {
    const x = (from + i) * step, decode = (s.generation_tokens_per_s || 0) / top * (height - 8), prefill = (s.prompt_tokens_per_s || 0) / top * (height - 8);
    pen.fillStyle = colour("decode");
    pen.fillRect(x, base - decode, Math.max(1, step - 1), decode);
    pen.fillStyle = colour("prefill");
    pen.fillRect(x, base - decode - prefill, Math.max(1, step - 1), prefill);
    if (s.preemptions_per_s > 0) {
      pen.fillStyle = colour("bad");
      pen.fillRect(x, 0, Math.max(2, step - 1), 3);
    }
    if (sum(s) > 0) line.push([x + step / 2, base - (s.last_step_ms || 0) / slowest * (height - 10)]);
    else line.push(null);
  });
  pen.strokeStyle = colour("ink");
  pen.globalAlpha = .55;
  pen.beginPath();
  let down = false;
  for (const point of line) {
    if (point) down ? pen.lineTo(...point) : pen.moveTo(...point);
    down = !!point;
  }
  pen.stroke();
  pen.globalAlpha = 1;
}

function drawSteps() {
  const workers = byRole(model.state?.workers || []).filter(w => w.kv).slice(0, MOST_ROWS), node = $("steps");
  legend($("step-legend"), [["prompt tokens", "var(--prefill)"], ["drawn tokens", "var(--decode)"], ["time of a step", "var(--ink)"], ["preempted", "var(--bad)"]]);
  if (!workers.length) {
    node.dataset.workers = "";
    return node.replaceChildren(el("p", {class: "empty"}, "No worker computes yet."));
  }
  sync(node, workers, () => el("div", {}, el("div", {class: "worker-line"}), el("div", {})));
  workers.forEach((w, i) => {
    const [line, holder] = node.children[i].children, samples = model.workers.get(w.name)?.samples || [];
    line.replaceChildren(el("b", {}, w.name), el("span", {class: "muted"}, `${count(w.steps_per_s)} steps/s${w.last_step_ms > 0 ? `, the last ${ms(w.last_step_ms)}` : ""} · ${w.prompt_tokens_per_s === null ? "" : `${count(w.prompt_tokens_per_s)} prompt + `}${count(w.generation_tokens_per_s)} drawn tok/s`));
    holder.dataset.tip = `${w.name}, the last ${SAMPLES_KEPT} s`;
    const [pen, width] = canvasFor(holder, 0, 58, `${w.name}: tokens and time of its steps`);
    drawStrip(samples, pen, width, 58);
  });
}
