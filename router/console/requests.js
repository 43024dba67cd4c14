"use strict";
// Requests: a list with small bars, and of the chosen one its waterfall on one clock and why it went where it went.

const view = {show: "all", chosen: null, rows: []};

// Pieces of a request's time: [lane, kind, from ms, to ms, words]. By the router's marks, and inside them what workers said.
function piecesOf(r) {
  const first = {}, out = [];
  for (const [stage, at] of r.marks) first[stage] ??= at;
  const end = r.finished ? r.at_ms : Math.max(eventNow() - r.began, 0);
  const add = (lane, kind, from, to, words) => { if (to > from) out.push({lane, kind, from, to, words}); };
  const t = r.timings || {}, name = r.worker || "worker";
  add("router", "router", 0, first.tokenized ?? end, "read and tokenize");
  if (first.waiting !== undefined) add("router", "queue", first.waiting, r.marks.findLast(m => m[0] === "placed")?.[1] ?? end, `no worker: ${r.cause || ""}`);
  if (first.tokenized !== undefined) add("router", "router", first.tokenized, first.placed ?? end, "choose workers");
  if (first.reserving !== undefined) add(name, "queue", first.reserving, first.reserved ?? end, "reserve KV");
  let begins = first.attached ?? first.transfer;
  if (first.prefill !== undefined) {
    const done = first.prefilled ?? end, said = r.prefilled || t, p = r.prefill_worker || "prefill";
    const queue = Math.min(said.queue_prefill_ms || 0, done - first.prefill), compute = Math.min(first.prefilled === undefined ? done - first.prefill : said.prefill_ms || 0, done - first.prefill - queue);
    add(p, "queue", first.prefill, first.prefill + queue, "waits for a place in a step");
    add(p, "prefill", first.prefill + queue, first.prefill + queue + compute, "computes the prompt");
    add(p, "router", first.prefill + queue + compute, done, "answers");
    if (first.transfer !== undefined || first.prefilled === undefined) add("KV", "under", first.prefill + queue, done, "KV follows layer by layer");
  }
  if (first.transfer !== undefined) {
    const rest = t.transfer_ms ?? 0;
    add("KV", "transfer", first.transfer, r.finished ? first.transfer + rest : Math.max(first.first_token ?? 0, first.transfer + .5), "the rest of the KV");
    begins = first.transfer + rest;
  }
  if (begins === undefined) return out;
  const prefillsItself = first.prefill === undefined, queue = (prefillsItself ? t.queue_prefill_ms : t.queue_decode_ms) || 0;
  let at = begins;
  if (r.finished || first.first_token !== undefined) {
    add(name, "queue", at, at + queue, "waits for a place in a step");
    at += queue;
    if (prefillsItself) {
      const token = first.first_token ?? end, from = r.finished ? at : begins;
      add(name, "prefill", from, Math.max(from, token), "computes the prompt");
      at = Math.max(from, token);
    }
    add(name, "decode", at, end, "draws tokens");
  } else {
    add(name, prefillsItself ? "prefill" : "queue", at, end, prefillsItself ? "waits or computes the prompt" : "waits");
  }
  return out;
}

const KIND = {router: "router", queue: "queue", prefill: "prefill", transfer: "transfer", decode: "decode", under: "transfer"};

function miniBar(r, longest) {
  const bar = svg("svg", {class: "bar", viewBox: "0 0 100 12", preserveAspectRatio: "none", "aria-hidden": "true"});
  const scale = 100 / Math.max(longest, 1e-3);
  for (const p of piecesOf(r)) {
    if (p.kind === "under") continue;
    bar.append(svg("rect", {x: p.from * scale, y: p.kind === "router" ? 4 : 1, width: Math.max(.4, (p.to - p.from) * scale), height: p.kind === "router" ? 4 : 10, rx: .6, fill: `var(--${KIND[p.kind]})`}));
  }
  return bar;
}

const lengthOf = r => r.finished ? r.at_ms : Math.max(0, eventNow() - r.began);
const firstTokenOf = r => r.first_token_ms || r.marks.find(m => m[0] === "first_token")?.[1];

function shownRequests() {
  const all = [...model.requests.values()], now = eventNow();
  if (view.show === "slow") return all.filter(r => r.finished >= now - MINUTE).sort((a, b) => lengthOf(b) - lengthOf(a)).slice(0, 30);
  const live = all.filter(r => !r.finished).sort((a, b) => a.began - b.began);
  if (view.show === "live") return live.slice(0, 60);
  return [...live.slice(-12).reverse(), ...all.filter(r => r.finished).sort((a, b) => b.finished - a.finished)].slice(0, 60);
}

function choose(id, follow) {
  view.chosen = id;
  redraw();
  if (follow) $("requests").querySelector('[aria-selected="true"]')?.scrollIntoView({block: "nearest"});
}

// What tells a request from the others: names that clients give begin alike, and end in what is their own.
function shortId(id) {
  return id.length <= 12 || /^[0-9a-f]{12}/.test(id) ? id.slice(0, 12) : `${id.slice(0, 5)}…${id.slice(-6)}`;
}

function requestRow(r, longest) {
  const failed = r.reason === "error" || r.reason === "refused", end = r.finished ? (failed ? r.reason : ms(r.at_ms)) : r.stage;
  const tip = [r.id, r.prefill_worker ? `${r.prefill_worker} → ${r.worker}` : r.worker || "", r.error || ""].filter(Boolean).join("\n");
  return el("div", {class: "request", role: "option", id: `r-${r.id}`, "aria-selected": String(r.id === view.chosen), tip, onclick: () => choose(r.id)},
    el("span", {class: "mono"}, shortId(r.id)), el("span", {}, miniBar(r, longest)), el("span", {}, ms(firstTokenOf(r))),
    el("span", {class: failed ? "failed" : r.finished ? "" : "live"}, end), el("span", {}, `${count(r.prompt_tokens || 0)}+${count(r.tokens || 0)}`));
}

function drawRequests() {
  view.rows = shownRequests();
  if (view.rows.length && (!view.chosen || !model.requests.has(view.chosen))) view.chosen = (view.rows.find(r => r.finished) || view.rows[0]).id;
  const longest = Math.max(...view.rows.map(lengthOf), 1);
  const title = el("div", {class: "request title"}, el("span", {}, "request"), el("span", {}, `0 … ${ms(longest)}`), el("span", {}, "1st token"), el("span", {}, "total"), el("span", {}, "tokens"));
  const scrolled = $("requests").scrollTop;
  $("requests").replaceChildren(title, ...view.rows.map(r => requestRow(r, longest)), view.rows.length ? "" : el("p", {class: "empty"}, "No request yet. The playground below sends one."));
  $("requests").scrollTop = scrolled;
  if (view.chosen) $("requests").setAttribute("aria-activedescendant", `r-${view.chosen}`);
  drawWaterfall();
}

// ---- the waterfall
function niceStep(length, parts) {
  const raw = length / parts, power = 10 ** Math.floor(Math.log10(raw));
  return power * [1, 2, 5, 10].find(m => m * power >= raw);
}

// Where a time is in the picture. What comes before the first token is often a sliver of the whole: then it gets most
// of the width, and the rest of the answer what is left, behind a break.
function scaleOf(r, length, x0, width) {
  const token = firstTokenOf(r), parts = (r.marks.findLast?.(m => m[0] === "transfer")?.[1] ?? 0) + (r.timings?.transfer_ms || 0);
  const head = token ? Math.max(token, parts) * 1.12 : 0;
  if (!head || head > .55 * length) {
    const at = time => x0 + time / length * width;
    return {at, spans: [[0, length, x0, width]], cut: null};
  }
  const first = width * .64, rest = width - first - 14;
  const at = time => time <= head ? x0 + time / head * first : x0 + first + 14 + (time - head) / (length - head) * rest;
  return {at, spans: [[0, head, x0, first], [head, length, x0 + first + 14, rest]], cut: x0 + first + 7};
}

function axis(drawing, scale, height) {
  for (const [from, to, x0, width] of scale.spans) {
    const step = niceStep(to - from, Math.max(2, width / 105));
    for (let at = Math.ceil(from / step) * step; at <= to + step / 1000; at += step) {
      const x = scale.at(at);
      drawing.append(svg("line", {x1: x, x2: x, y1: 18, y2: height, stroke: "var(--line)"}));
      if ((from === 0 && (x < x0 + width - 30 || !scale.cut)) || (from > 0 && x > x0 + 24 && x < x0 + width - 14)) drawing.append(svg("text", {x, y: 11, class: "small", "text-anchor": at === 0 ? "start" : "middle"}, ms(Math.max(0, at)).replace(/\.0+ /, " ").replace(/(\.\d)0 /, "$1 ")));
    }
  }
  if (scale.cut) for (const shift of [-3, 3]) {
    const x = scale.cut + shift;
    drawing.append(svg("path", {d: `M${x + 3} 8 L${x - 3} ${height}`, stroke: "var(--queue)", "stroke-width": 1, tip: "the time scale changes here"}));
  }
}

function ticksOf(r) {
  const marks = r.ticks.map(([at]) => at), from = firstTokenOf(r);
  if (marks.length > 1 || !r.finished || !from || r.tokens < 2) return marks;
  const step = (r.last_token_ms - from) / (r.tokens - 1), every = Math.max(1, Math.ceil(r.tokens / 300));  // not seen as they came: by their mean gap
  return Array.from({length: Math.ceil(r.tokens / every)}, (_, i) => from + i * every * step);
}

function drawWaterfall() {
  const r = model.requests.get(view.chosen), node = $("waterfall");
  if (!r) {
    $("why").replaceChildren();
    return node.replaceChildren(el("p", {class: "empty"}, "A request's way through the cluster is drawn here."));
  }
  const pieces = piecesOf(r), length = Math.max(lengthOf(r), .1);
  const rank = lane => ["router", r.prefill_worker, "KV"].indexOf(lane) >>> 0;  // others come last
  const lanes = [...new Set(["router", ...pieces.map(p => p.lane)])].sort((a, b) => rank(a) - rank(b));
  const W = Math.max(220, node.clientWidth || 560), x0 = Math.min(104, W * .22), width = W - x0 - 14, row = 34, H = 24 + lanes.length * row + 8;
  const drawing = svg("svg", {viewBox: `0 0 ${W} ${H}`, width: W, height: H, role: "img", "aria-label": `Request ${r.id}: ${pieces.map(p => `${p.words} ${ms(p.to - p.from)}`).join(", ")}`});
  const scale = scaleOf(r, length, x0, width);
  axis(drawing, scale, H);
  lanes.forEach((lane, i) => drawing.append(svg("text", {x: 0, y: 24 + i * row + 20, class: lane === "KV" ? "small" : ""}, lane === "KV" ? "KV on its way" : lane)));
  for (const p of pieces) {
    const x = scale.at(p.from), w = Math.max(1.5, scale.at(p.to) - x), y = 24 + lanes.indexOf(p.lane) * row;
    const tip = `${p.words}: ${ms(p.to - p.from)}\nfrom ${ms(p.from)} to ${ms(p.to)}`;
    const under = p.kind === "under";
    drawing.append(svg("rect", {x, y: under ? y + 11 : y + 6, width: w, height: under ? 8 : 20, rx: Math.min(4, w / 2), fill: `var(--${KIND[p.kind]})`, "fill-opacity": under ? .35 : p.kind === "router" ? .55 : .95, tip}));
    if (w > 58 && !under) drawing.append(svg("text", {x: x + 6, y: y + 20, class: "inside"}, ms(p.to - p.from)));
  }
  const decodeLane = 24 + lanes.indexOf(r.worker) * row;
  if (r.worker) for (const at of ticksOf(r)) {
    const x = scale.at(at);
    drawing.append(svg("line", {x1: x, x2: x, y1: decodeLane + 20, y2: decodeLane + 26, stroke: "var(--card)", "stroke-opacity": .85, "stroke-width": 1}));
  }
  const token = firstTokenOf(r);
  if (token) {
    const x = scale.at(token), left = x > W - 120;
    drawing.append(svg("line", {x1: x, x2: x, y1: 18, y2: H, stroke: "var(--ink)", "stroke-dasharray": "3 3", "stroke-opacity": .7, tip: `first token after ${ms(token)}`}));
    drawing.append(svg("text", {x: left ? x - 5 : x + 5, y: 24 + 20, class: "small way", "text-anchor": left ? "end" : "start"}, `first token ${ms(token)}`));
  }
  node.replaceChildren(title(r), drawing, facts(r), r.error || (!r.finished && r.cause) ? el("p", {class: "cause"}, r.error || r.cause) : "");
  drawWhy(r.placed?.why, $("why"), `Why ${r.prefill_worker ? `${r.prefill_worker} and ` : ""}${r.worker}?`);
}

function title(r) {
  const where = r.prefill_worker ? `${r.prefill_worker} → ${r.worker}` : r.worker || "";
  return el("div", {class: "waterfall-title"}, el("span", {class: "mono"}, r.id), el("span", {class: "muted"}, where),
    el("span", {class: "muted"}, r.finished ? `ended: ${r.reason}` : `now: ${r.stage}`));
}

function facts(r) {
  const move = r.transfer && typeof r.transfer === "object" ? r.transfer : null, perSecond = r.mean_gap_ms > 0 ? 1000 / r.mean_gap_ms : null;
  const fact = (name, value) => value === null || value === undefined ? null : el("span", {}, `${name} `, el("b", {}, value));
  return el("div", {class: "facts"}, fact("prompt", r.prompt_tokens ? `${count(r.prompt_tokens)} tokens` : null), fact("cached", r.cached_tokens ? count(r.cached_tokens) : null),
    fact("answer", `${count(r.tokens || 0)} tokens`), fact("pace", perSecond ? `${count(perSecond)} tok/s` : null),
    fact("KV moved", move ? bytes(move.bytes) : null), fact("by", move ? `${move.transport || "?"}, ${gbs(move.self_test_gigabytes_per_second)} in the self-test` : null),
    fact("predicted first token", r.placed ? ms(r.placed.predicted_ttft_ms) : null), fact("attempts", r.attempts > 1 ? r.attempts : null));
}

// ---- why here
const TERMS = [["queue_ms", "queue", "waits"], ["prefill_ms", "prefill", "prefill of what is not cached"], ["transfer_ms", "transfer", "transfer"], ["handoff_ms", "router", "handoff"], ["decode_slowdown_ms", "decode", "decode slowdown"], ["stall_ms", "prefill", "stall of running answers"], ["pressure_ms", "bad", "KV pressure"]];

function drawWhy(why, node, heading) {
  if (!why) return node.replaceChildren();
  const most = Math.max(...why.options.map(o => o.total_ms), 1e-6);
  const rows = [...why.options].sort((a, b) => a.total_ms - b.total_ms).slice(0, 8).map(o => {
    const bar = svg("svg", {class: "bar", viewBox: "0 0 100 12", preserveAspectRatio: "none"});
    let x = 0;
    for (const [key, tint, words] of TERMS) {
      const w = 100 * o[key] / most;
      if (w > 0) bar.append(svg("rect", {x, y: 1, width: w, height: 10, fill: `var(--${tint})`, tip: `${words}: ${ms(o[key])}`}));
      x += w;
    }
    return el("tr", {class: o.chosen ? "chosen" : ""}, el("td", {}, `${o.chosen ? "✓ " : ""}${o.prefill_worker ? `${o.prefill_worker} → ` : ""}${o.worker}`), el("td", {css: {width: "45%"}}, bar),
      el("td", {class: "number-cell"}, ms(o.total_ms)), el("td", {class: "number-cell"}, o.cached_tokens ? `${count(o.cached_tokens)} cached` : ""));
  });
  const out = why.out.slice(0, 4).map(o => el("tr", {}, el("td", {class: "muted"}, `✗ ${o.prefill_worker ? `${o.prefill_worker} → ` : ""}${o.worker}`), el("td", {colspan: 3, class: "muted"}, o.reason)));
  node.replaceChildren(el("h3", {}, heading, ` ${count(why.prompt_tokens)} tokens, by ${why.policy}`), el("table", {}, el("tbody", {}, ...rows, ...out)));
}
