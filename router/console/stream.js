"use strict";
// What the page knows: events come in, from the router or of a recording, and `model` is what they say.

const SAMPLES_KEPT = 90, REQUESTS_KEPT = 300, MINUTE = 60000;

const model = {};
function forget() {
  Object.assign(model, {hello: null, state: null, samples: [], workers: new Map(), requests: new Map(), lost: 0, time: 0, heard: 0});
}
forget();

// Event time now: what the last event said, and what has passed here since.
function eventNow() {
  return player.lines ? model.time : model.time + Math.min(5000, performance.now() - model.heard);
}

function requestOf(event) {
  let request = model.requests.get(event.id);
  if (!request) {
    request = {id: event.id, began: event.t - event.at_ms, marks: [], ticks: [], stage: "received", prompt_tokens: 0, tokens: 0};
    model.requests.set(event.id, request);
    if (model.requests.size > REQUESTS_KEPT) {
      const old = [...model.requests.values()].find(r => r.finished) || model.requests.values().next().value;
      model.requests.delete(old.id);
    }
  }
  return request;
}

function takeRequest(event) {
  const request = requestOf(event);
  request.stage = event.stage;
  switch (event.stage) {
    case "tokens":
      request.ticks.push([event.at_ms, event.new]);
      request.tokens = event.tokens;
      return;
    case "finished":
      Object.assign(request, event, {finished: event.t, stage: "finished", marks: event.marks});
      request.tokens = event.completion_tokens;
      return;
    case "tokenized": request.prompt_tokens = event.prompt_tokens; break;
    case "placed": Object.assign(request, {worker: event.worker, prefill_worker: event.prefill_worker, placed: event}); break;
    case "prefilled": request.prefilled = event; break;
    case "transfer": request.transfer = event; break;
    case "lost": case "waiting": request.cause = event.cause; break;
  }
  request.marks.push([event.stage, event.at_ms]);
}

function takeState(event) {
  model.state = event;
  model.samples.push(event);
  if (model.samples.length > SAMPLES_KEPT) model.samples.shift();
  for (const worker of event.workers) {
    const known = model.workers.get(worker.name) || {samples: []};
    known.samples.push({t: event.t, ...worker});
    if (known.samples.length > SAMPLES_KEPT) known.samples.shift();
    model.workers.set(worker.name, known);
  }
  const names = new Set(event.workers.map(w => w.name));
  for (const name of model.workers.keys()) if (!names.has(name)) model.workers.delete(name);
  const live = new Set(event.requests.map(r => r.id));
  for (const one of event.requests) {  // those that began before we came
    const known = model.requests.has(one.id);
    const request = requestOf({id: one.id, t: event.t, at_ms: one.age_ms});
    if (!known) Object.assign(request, one, {marks: [["received", 0], [one.stage, one.age_ms - one.stage_ms]]});
    request.tokens = Math.max(request.tokens, one.tokens);
  }
  for (const [id, request] of model.requests) {  // its end was among what was lost
    if (!request.finished && !live.has(id) && !event.requests_left_out && event.t - request.began > 3000 && model.lost) model.requests.delete(id);
  }
}

function take(event) {
  model.time = Math.max(model.time, event.t);
  model.heard = performance.now();
  if (event.event === "hello") model.hello = event;
  else if (event.event === "state") takeState(event);
  else if (event.event === "request") takeRequest(event);
  else if (event.event === "lost") model.lost += event.events;
}

const finishedOf = since => [...model.requests.values()].filter(r => r.finished && r.finished >= since);

// ---- the router's stream
const link = {state: "connecting", key: "", held: null, held_events: []};
const authorization = () => link.key ? {Authorization: `Bearer ${link.key}`} : {};

async function readEvents(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const {value, done} = await reader.read();
    if (done) return;
    text += value;
    const blocks = text.split("\n\n");
    text = blocks.pop();
    for (const block of blocks) {
      if (!block.startsWith("data: ")) continue;
      const event = JSON.parse(block.slice(6));
      if (player.lines) continue;
      if (link.held) link.held_events.push(event);
      else take(event);
    }
    if (link.held_events.length > 20000) link.held_events.splice(0, 10000);
    redraw();
  }
}

async function follow() {
  for (let pause = 500; ; pause = Math.min(5000, pause * 2)) {
    try {
      const response = await fetch("events", {headers: authorization(), cache: "no-store"});
      $("key-form").hidden = response.status !== 401;
      if (response.ok) {
        link.state = "live";
        pause = 500;
        if (!player.lines) forget();
        await readEvents(response);
      } else {
        link.state = response.status === 401 ? "needs a key" : `HTTP ${response.status}`;
        if (response.status === 401) await new Promise(wake => { link.wake = wake; });
        if (response.status === 401) continue;
      }
    } catch (error) {
      link.state = location.protocol === "file:" ? "no router" : "not connected";
    }
    if (link.state === "live") link.state = "not connected";
    redraw();
    if (location.protocol === "file:") return;
    await new Promise(wake => setTimeout(wake, pause));
  }
}

function setPaused(paused) {
  link.held = paused;
  if (!paused) for (const event of link.held_events.splice(0)) take(event);
  $("pause").setAttribute("aria-pressed", String(!!paused));
  redraw();
}

// ---- a recording: lines of JSON, as `baton top --record` writes them
const player = {lines: null, at: 0, running: false};

function openRecording(text) {
  const lines = [], texts = text.split("\n");
  let cut = 0;  // the number of a last line without an end
  for (const [number, line] of texts.entries()) {
    if (!line.trim()) continue;
    try {
      const event = JSON.parse(line);
      if (typeof event?.t !== "number" || !event.event) throw new Error("it is no event");
      if (event.event === "state" && !(Array.isArray(event.workers) && Array.isArray(event.requests))) throw new Error("it is no state");
      lines.push(event);
    } catch (error) {
      cut = number + 1;
      if (cut === texts.length && lines.length) break;
      alert(`Line ${number + 1} of the recording: ${error.message}`);
      return;
    }
  }
  if (!lines.length) return alert("The recording has no events.");
  Object.assign(player, {lines, cut, at: 0, running: true, began: lines[0].t, ended: lines.reduce((latest, e) => Math.max(latest, e.t), 0)});
  player.began = lines.find(e => e.event === "state")?.t ?? player.began;
  $("player").hidden = false;
  seek(player.began);
}

// Everything up to a time; backwards it begins again.
function seek(time) {
  if (time < player.time || player.at === 0) {
    forget();
    player.at = 0;
  }
  for (; player.at < player.lines.length && player.lines[player.at].t <= time; ++player.at) take(player.lines[player.at]);
  player.time = time;
  model.time = time;
  redraw();
}

setInterval(() => {
  if (!player.lines || !player.running || link.held) return;
  if (player.time >= player.ended) player.running = false;
  else seek(Math.min(player.ended, player.time + 100));
}, 100);
