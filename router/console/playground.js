"use strict";
// The playground: a message to the model, by the admin port, with its pace; and where a prompt would go.

const talk = {stop: null};

function showToken(piece, logprob) {
  const chance = logprob === undefined ? null : Math.exp(logprob);
  const attributes = {class: "token"};
  if (chance !== null) {
    attributes.tip = `${(100 * chance).toFixed(1)} %`;
    attributes.css = {"background-color": `color-mix(in srgb, var(--bad) ${Math.round(60 * (1 - chance))}%, transparent)`};
  }
  $("answer").append(el("span", attributes, piece));
}

function showChunk(chunk, run) {
  const now = performance.now(), choice = chunk.choices?.[0];
  if (chunk.error) throw new Error(chunk.error.message);
  if (chunk.usage) run.tokens = chunk.usage.completion_tokens;
  if (chunk.timings) run.timings = chunk.timings;
  if (!choice) return;
  const thought = choice.delta?.reasoning_content, text = choice.delta?.content, probabilities = choice.logprobs?.content;
  if (!thought && !text && !probabilities?.length) return;
  run.first ??= now;
  run.last = now;
  run.chunks += 1;
  if (thought) $("answer").append(el("span", {class: "thought"}, thought));
  if (probabilities?.length) for (const one of probabilities) showToken(one.token, one.logprob);
  else if (text) showToken(text);
}

function showPace(run, over) {
  // What comes at once was drawn before: then the server's own time counts.
  const t = run.timings, drawn = t ? (t.transfer_ms || 0) + (t.queue_decode_ms || 0) + (t.first_decode_ms || 0) + (t.decode_ms || 0) : 0;
  const tokens = run.tokens || run.chunks, seconds = Math.max(run.last - run.first, drawn) / 1000;
  if (!run.first) return $("pace").replaceChildren(over ? "" : "waits for the first token…");
  const pace = tokens > 1 && seconds > 0 ? `${count((tokens - 1) / seconds)} tokens/s` : "";
  $("pace").replaceChildren([`first token ${ms(run.first - run.began)}`, `${tokens} tokens`, pace].filter(Boolean).join(" · "));
}

async function readAnswer(response, run) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let text = ""; ;) {
    const {value, done} = await reader.read();
    if (done) return;
    text += value;
    const blocks = text.split("\n\n");
    text = blocks.pop();
    for (const block of blocks) if (block.startsWith("data: ") && block !== "data: [DONE]") showChunk(JSON.parse(block.slice(6)), run);
    showPace(run, false);
  }
}

async function ask(event) {
  event?.preventDefault();
  if (talk.stop) return talk.stop.abort();
  if (!$("prompt").value.trim()) return $("prompt").focus();
  const body = {messages: [{role: "user", content: $("prompt").value}], stream: true, stream_options: {include_usage: true},
    max_tokens: Number($("max-tokens").value), temperature: Number($("temperature").value), logprobs: $("colours").checked};
  const run = {began: performance.now(), first: undefined, last: 0, chunks: 0, tokens: 0};
  talk.stop = new AbortController();
  $("send").textContent = "Stop";
  $("answer").replaceChildren();
  showPace(run, false);
  try {
    const response = await fetch("v1/chat/completions", {method: "POST", headers: {"Content-Type": "application/json", ...authorization()}, body: JSON.stringify(body), signal: talk.stop.signal});
    if (!response.ok) throw new Error((await response.json()).error?.message || `HTTP ${response.status}`);
    await readAnswer(response, run);
  } catch (error) {
    if (error.name !== "AbortError") $("answer").append(el("p", {class: "cause"}, location.protocol === "file:" ? "The page was opened as a file: no router is here." : error.message));
  }
  talk.stop = null;
  $("send").textContent = "Send";
  showPace(run, true);
}

async function askWhere() {
  try {
    const response = await fetch("debug/route", {method: "POST", headers: {"Content-Type": "application/json", ...authorization()}, body: JSON.stringify({prompt: $("prompt").value || " "})});
    const said = await response.json();
    if (!response.ok) throw new Error(said.error?.message || `HTTP ${response.status}`);
    drawWhy(said, $("what-if"), "It would go to the first of these.");
  } catch (error) {
    $("what-if").replaceChildren(el("p", {class: "cause"}, error.message));
  }
}
