"use strict";
// What stands on top, keys, and when what is drawn.

let due = false;
function redraw() {
  if (due) return;
  due = true;
  requestAnimationFrame(() => {
    due = false;
    draw();
  });
}

function drawTop() {
  const state = model.state, recorded = player.lines !== null;
  $("model-name").textContent = model.hello ? `${model.hello.model} · ${model.hello.version}` : link.state;
  const said = recorded ? "recording" : link.state !== "live" ? link.state : link.held ? "paused" : state?.status || "live";
  $("status").textContent = said;
  $("status").className = `pill ${said === "ready" ? "good" : said === "recording" || said === "paused" || said === "loading" || said === "draining" ? "warn" : said === "live" || said === "connecting" ? "" : "bad"}`;
  $("status").dataset.tip = state?.detail || "";
  $("footer-left").textContent = [model.hello ? `router policy ${model.hello.policy}` : "", model.lost ? `${model.lost} events were missed` : ""].filter(Boolean).join(" · ");
  if (recorded) {
    $("played").textContent = `${((player.time - player.began) / 1000).toFixed(1)} of ${((player.ended - player.began) / 1000).toFixed(1)} s${player.cut ? `: line ${player.cut} is cut` : ""}`;
    $("seek").value = String(Math.round(1000 * (player.time - player.began) / Math.max(1, player.ended - player.began)));
    $("play").textContent = player.running ? "Stop" : "Play";
  }
}

let drawnState = null;
function draw() {
  drawTop();
  drawRequests();
  if (drawnState === model.state && drawnState !== null) return;
  drawnState = model.state;
  drawNumbers();
  drawCluster();
  drawKv();
  drawSteps();
}
function drawAll() {
  drawnState = null;
  draw();
}

// ---- light and dark
function setTheme(theme) {
  try {
    theme ? localStorage.setItem("baton-theme", theme) : localStorage.removeItem("baton-theme");
  } catch { /* a page without storage forgets it */ }
  const dark = theme ? theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  document.documentElement.dataset.theme = dark ? "dark" : "light";
  document.documentElement.style.colorScheme = dark ? "dark" : "light";
  drawAll();
}
const storedTheme = () => { try { return localStorage.getItem("baton-theme"); } catch { return null; } };
const nextTheme = () => setTheme(document.documentElement.dataset.theme === "dark" ? "light" : "dark");

// ---- keys
function step(by) {
  const at = view.rows.findIndex(r => r.id === view.chosen), next = view.rows[Math.min(view.rows.length - 1, Math.max(0, at + by))];
  if (next) choose(next.id, true);
}
function show(which) {
  view.show = which;
  view.chosen = null;
  for (const button of document.querySelectorAll("[data-show]")) button.setAttribute("aria-pressed", String(button.dataset.show === which));
  redraw();
}
const KEYS = [
  ["j", "next request", () => step(1)], ["k", "the one before", () => step(-1)], ["a", "the latest requests", () => show("all")],
  ["u", "those under way", () => show("live")], ["s", "the slowest of the last minute", () => show("slow")],
  [" ", "stand still, go on", () => setPaused(!link.held)], ["t", "light or dark", nextTheme],
  ["/", "to the playground", () => $("prompt").focus()], ["?", "these keys", () => $("keys").showModal()],
];
document.addEventListener("keydown", event => {
  if (event.target.matches("input, textarea, select, dialog *")) {
    if (event.key === "Escape") event.target.blur();
    if (event.key === "Enter" && event.ctrlKey && event.target.id === "prompt") ask(event);
    return;
  }
  if (event.ctrlKey || event.metaKey || event.altKey || (event.key === " " && event.target.matches("button"))) return;
  const list = event.target.id === "requests" ? {ArrowDown: 1, ArrowUp: -1}[event.key] : 0;
  if (list) step(list);
  const known = KEYS.find(([key]) => key === event.key);
  if (known) known[2]();
  if (known || list) event.preventDefault();
});

// ---- what can be pressed
for (const button of document.querySelectorAll("[data-show]")) button.addEventListener("click", () => show(button.dataset.show));
$("pause").addEventListener("click", () => setPaused(!link.held));
$("theme").addEventListener("click", nextTheme);
$("help").addEventListener("click", () => $("keys").showModal());
$("ask").addEventListener("submit", ask);
$("where").addEventListener("click", askWhere);
$("recording").addEventListener("change", async event => {
  const file = event.target.files[0];
  if (file) openRecording(await file.text());
  event.target.value = "";
});
$("seek").addEventListener("input", () => {
  player.running = false;
  seek(player.began + Number($("seek").value) / 1000 * (player.ended - player.began));
});
$("play").addEventListener("click", () => {
  if (!player.running && player.time >= player.ended) seek(player.began);
  player.running = !player.running;
  redraw();
});
$("live").addEventListener("click", () => {
  player.lines = null;
  $("player").hidden = true;
  location.reload();
});
$("key-form").addEventListener("submit", event => {
  event.preventDefault();
  link.key = $("key").value;
  $("key").value = "";
  link.wake?.();
});
addEventListener("resize", drawAll);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => setTheme(storedTheme()));
setInterval(() => { if (!link.held && [...model.requests.values()].some(r => !r.finished)) redraw(); }, 200);

$("key-list").append(...KEYS.flatMap(([key, words]) => [el("dt", {}, el("kbd", {}, key === " " ? "space" : key)), el("dd", {}, words)]));
setTheme(storedTheme());
follow();
