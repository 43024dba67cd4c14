"use strict";
// The cluster as a picture: router, prefill and decode workers, and the ways between them: colour is the transport,
// thickness the self-test's GB/s, what moves is KV that travels now.

const MOST_DRAWN = 16;
const STATE_COLOURS = {ready: "var(--good)", draining: "var(--warn)", unproven: "var(--warn)", loading: "var(--focus)", connecting: "var(--queue)", lost: "var(--bad)", mismatch: "var(--bad)"};

function workerTip(w) {
  const lines = [`${w.name} (${w.role}) at ${w.address}: ${w.state}`];
  if (w.detail) lines.push(w.detail);
  if (w.kv) {
    lines.push(`KV: ${count(w.kv.used)} of ${count(w.kv.blocks)} blocks of ${w.kv.tokens_per_block} tokens`);
    lines.push(`step ${ms(w.last_step_ms)}, ${count(w.steps_per_s)} steps/s`);
  }
  if (w.restarts || w.losses) lines.push(`${w.restarts} restarts, lost ${w.losses} times`);
  return lines.join("\n");
}

function workerLine(w, short) {
  if (w.state !== "ready" && w.state !== "draining") return w.phase ? `${w.phase} ${Math.round(100 * w.progress)} %` : w.state;
  const parts = [`${w.running ?? 0} run`];
  if (w.waiting) parts.push(`${w.waiting} wait`);
  const rate = w.role === "prefill" ? w.prompt_tokens_per_s : w.generation_tokens_per_s;
  if (rate !== null && rate !== undefined && !(short && w.waiting)) parts.push(`${count(rate)} tok/s`);
  return (w.state === "draining" ? "drains · " : "") + parts.join(" · ");
}

function box(w, x, y, width, height) {
  const share = w.kv && w.kv.blocks ? w.kv.used / w.kv.blocks : 0;
  const held = w.kv && w.kv.blocks ? (w.kv.used + w.kv.reserved + w.kv.cached) / w.kv.blocks : 0;
  const inner = width - 24;
  const tint = {prefill: "var(--prefill)", decode: "var(--decode)", both: "var(--transfer)"}[w.role] || "var(--queue)";
  return svg("g", {tip: workerTip(w)},
    svg("rect", {x, y, width, height, rx: 10, fill: "var(--soft)", stroke: "var(--line)", "stroke-dasharray": w.state === "ready" ? null : "5 4"}),
    svg("rect", {x, y: y + 10, width: 4, height: height - 20, rx: 2, fill: tint}),
    svg("circle", {cx: x + width - 14, cy: y + 16, r: 4, fill: STATE_COLOURS[w.state] || "var(--queue)"}),
    svg("text", {x: x + 14, y: y + 20, class: "strong"}, w.name.length > 20 ? `${w.name.slice(0, 19)}…` : w.name),
    svg("text", {x: x + 14, y: y + 36, class: "small"}, workerLine(w, width < 180)),
    svg("rect", {x: x + 14, y: y + height - 17, width: inner, height: 7, rx: 3.5, fill: "var(--free)"}),
    svg("rect", {x: x + 14, y: y + height - 17, width: Math.max(0, inner * Math.min(1, held)), height: 7, rx: 3.5, fill: "var(--cached)"}),
    svg("rect", {x: x + 14, y: y + height - 17, width: Math.max(share > 0 ? 3 : 0, inner * share), height: 7, rx: 3.5, fill: "var(--used)"}));
}

function curve(a, b) {
  const bend = Math.max(30, Math.abs(b.x - a.x) / 2);
  return `M${a.x} ${a.y} C${a.x + bend} ${a.y} ${b.x - bend} ${b.y} ${b.x} ${b.y}`;
}

// A way of KV, with its numbers written beside it where `t` says (0: where it begins, 1: where it ends; null: nowhere).
function wayOf(l, a, b, t) {
  const moves = l.bytes_per_s > 0, width = 1.5 + 2.2 * Math.log10(1 + l.self_test_gigabytes_per_second * 4);
  const tint = transportColour(l.transport);
  const tip = `${l.from} → ${l.to}: ${l.transport} (${l.path})\nself-test ${gbs(l.self_test_gigabytes_per_second)}, now ${bytes(l.bytes_per_s)}/s`;
  const out = [
    svg("path", {d: curve(a, b), fill: "none", stroke: tint, "stroke-width": width, "stroke-opacity": moves ? .35 : .5, tip}),
  ];
  if (moves) out.push(svg("path", {d: curve(a, b), fill: "none", stroke: tint, "stroke-width": width + .5, "stroke-dasharray": "8 16", class: "flow", "stroke-linecap": "round", tip}));
  const words = [];
  if (t !== null) {
    const x = a.x + (b.x - a.x) * t, s = t * t * (3 - 2 * t), y = a.y + (b.y - a.y) * s;
    words.push(svg("text", {x, y: y - 8, "text-anchor": "middle", class: "strong way"}, `${l.transport} ${gbs(l.self_test_gigabytes_per_second)}`));
    words.push(svg("text", {x, y: y + 16, "text-anchor": "middle", class: "small way"}, moves ? `${bytes(l.bytes_per_s)}/s now` : "idle now"));
  }
  return [out, words];
}

function column(workers, x, width, height, gap, total) {
  const used = workers.length * height + (workers.length - 1) * gap, top = (total - used) / 2;
  return new Map(workers.map((w, i) => [w.name, {w, x, y: top + i * (height + gap), mid: top + i * (height + gap) + height / 2, width, height}]));
}

function drawCluster() {
  const state = model.state, node = $("cluster");
  if (!state) return node.replaceChildren(el("p", {class: "empty"}, link.state === "live" ? "Waiting for the first state…" : `${link.state}: open a recording, or start a router.`));
  const first = state.workers.filter(w => w.role === "prefill").slice(0, MOST_DRAWN);
  const second = state.workers.filter(w => w.role !== "prefill").slice(0, MOST_DRAWN);
  const W = Math.max(340, Math.min(1300, node.clientWidth || 1000)), narrow = W < 700;
  const boxHeight = 70, gap = 16;
  const rows = Math.max(first.length, second.length, 1), head = narrow ? 76 : 8;
  const inner = Math.max(narrow ? 90 : 100, rows * (boxHeight + gap) - gap), H = inner + head + 12;
  const router = narrow ? {x: W / 2 - 85, y: 6, width: 170, height: 52} : {x: 4, y: H / 2 - 35, width: Math.min(190, W * .17), height: 70};
  const px = narrow ? 4 : router.x + router.width + W * .1;
  const boxWidth = !first.length ? W - px - 4 : narrow ? Math.min(150, W * .42) : Math.min(230, W * .21);  // alone they have all the room
  const p = column(first, px, boxWidth, boxHeight, gap, inner), d = column(second, W - boxWidth - 4, boxWidth, boxHeight, gap, inner);
  const all = [...p.values(), ...d.values()];
  for (const one of all) one.y += head, one.mid += head;
  const drawing = svg("svg", {viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": `A router, ${first.length} prefill and ${second.length} other workers`});
  drawing.style.maxHeight = `${H}px`;
  const start = narrow ? {x: W / 2, y: router.y + router.height} : {x: router.x + router.width, y: H / 2};
  for (const one of all) {
    const busy = one.w.requests > 0;
    const d1 = narrow ? `M${start.x} ${start.y} C${start.x} ${start.y + 24} ${one.x + one.width / 2} ${one.y - 26} ${one.x + one.width / 2} ${one.y}`
      : curve(start, {x: one.x, y: one.mid + (d.has(one.w.name) && first.length ? one.height * .32 : 0)});
    drawing.append(svg("path", {d: d1, fill: "none", stroke: "var(--router)", "stroke-width": 1.2, "stroke-opacity": busy ? .7 : .3, "stroke-dasharray": "2 4", tip: `${one.w.requests} requests of this router`}));
  }
  const ways = state.links.filter(l => p.has(l.from) && d.has(l.to));
  const allWords = [];  // over all ways
  const few = !narrow && ways.length <= 4, from = new Set(ways.map(l => l.from)).size, to = new Set(ways.map(l => l.to)).size;
  ways.forEach(l => {
    const a = p.get(l.from), b = d.get(l.to);
    // Where ways lie apart: at the far end from one that all share; among crossing ones, level ways late and the others early.
    const t = !few ? null : ways.length === 1 ? .5 : from === 1 ? .7 : to === 1 ? .3 : a.mid === b.mid ? .64 : .22;
    const [lines, words] = wayOf(l, {x: a.x + a.width, y: a.mid}, {x: b.x, y: b.mid}, t);
    drawing.append(...lines);
    allWords.push(...words);
  });
  drawing.append(...allWords);
  drawing.append(svg("g", {tip: `${state.running} of at most ${state.max_running} requests, ${state.texts_queued} texts wait to be tokenized`},
    svg("rect", {...router, rx: 10, fill: "var(--soft)", stroke: "var(--line)"}),
    svg("text", {x: router.x + 14, y: router.y + 22, class: "strong"}, "router"),
    svg("text", {x: router.x + 14, y: router.y + 40, class: "small"}, `${state.running} request${state.running === 1 ? "" : "s"}${state.recomputing ? ` · ${state.recomputing} again` : ""}`)));
  if (!narrow) drawing.append(svg("text", {x: router.x + 14, y: router.y + 57, class: "small"}, model.hello?.policy || ""));
  for (const one of all) drawing.append(box(one.w, one.x, one.y, one.width, one.height));
  const left = state.workers.length - all.length;
  node.replaceChildren(drawing, left > 0 ? el("p", {class: "muted"}, `and ${left} more workers`) : "");
  const seen = [...new Set(state.links.map(l => l.transport))];
  legend($("link-legend"), [...seen.map(t => [t, transportColour(t)]), ["KV held", "var(--used)"], ["cached", "var(--cached)"]]);
}

// ---- the numbers on top
function spark(values, tint) {
  const known = values.filter(v => v !== null && v !== undefined);
  if (known.length < 2) return "";
  const top = Math.max(...known, 1e-9), step = 100 / (SAMPLES_KEPT - 1), from = 100 - (known.length - 1) * step;
  const points = known.map((v, i) => `${(from + i * step).toFixed(2)},${(30 - 27 * v / top).toFixed(2)}`);
  return svg("svg", {viewBox: "0 0 100 30", preserveAspectRatio: "none", "aria-hidden": "true"},
    svg("path", {d: `M${from},30 L${points.join(" L")} L100,30 Z`, fill: tint, "fill-opacity": .22}),
    svg("path", {d: `M${points.join(" L")}`, fill: "none", stroke: tint, "stroke-width": 1.2, "vector-effect": "non-scaling-stroke"}));
}

function numberCard(label, value, unit, values, tint, tip, aside) {
  return el("div", {class: "number", tip}, el("span", {class: "label"}, label), el("b", {}, value, " ", el("small", {}, unit)), values ? spark(values, tint) : "",
    aside ? el("span", {class: "aside"}, aside) : "");
}

function drawNumbers() {
  const state = model.state;
  if (!state) return $("numbers").replaceChildren();
  const minute = finishedOf(eventNow() - MINUTE), answered = minute.filter(r => r.first_token_ms > 0);
  const ttft = answered.map(r => r.first_token_ms).sort((a, b) => a - b);
  const gaps = answered.map(r => r.mean_gap_ms).filter(g => g > 0).sort((a, b) => a - b);
  const failed = minute.filter(r => r.reason === "error" || r.reason === "refused").length;
  const kv = role => state.workers.filter(w => w.kv && (role ? w.role === role : true)).reduce((sum, w) => [sum[0] + w.kv.used, sum[1] + w.kv.blocks], [0, 0]);
  const [used, blocks] = kv();
  const of = key => model.samples.map(s => s[key]);
  const share = blocks ? 100 * used / blocks : 0;
  $("numbers").replaceChildren(
    numberCard("Tokens out", count(state.generation_tokens_per_s), "/s", of("generation_tokens_per_s"), "var(--decode)", "Tokens that workers generated in the last second"),
    numberCard("Prompt tokens", count(state.prompt_tokens_per_s), "/s", of("prompt_tokens_per_s"), "var(--prefill)", "Prompt tokens that workers computed in the last second"),
    numberCard("Running", count(state.running), `of ${count(state.max_running)}`, of("running"), "var(--router)", "Requests in this router"),
    numberCard("First token", ms(percentile(ttft, .5)), "", null, "", `Of ${ttft.length} requests of the last minute`, ttft.length && `p95 ${ms(percentile(ttft, .95))}`),
    numberCard("Token gap", ms(percentile(gaps, .5)), "", null, "", `Mean gaps of ${gaps.length} requests of the last minute`, gaps.length && `p95 ${ms(percentile(gaps, .95))}`),
    numberCard("KV held", `${share >= 10 ? share.toFixed(0) : share.toFixed(1)} %`, failed ? `· ${failed} failed` : "", model.samples.map(s => s.workers.reduce((sum, w) => sum + (w.kv?.used || 0), 0)), "var(--used)", "Blocks that sequences hold, of all workers"));
}
