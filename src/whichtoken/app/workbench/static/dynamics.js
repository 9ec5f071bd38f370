// Watch training: lines against the step with theory's under them, a map or bars at the chosen step, time slider and play.
import { chart, COLORS, QUIET } from "./chart.js";

const form = document.getElementById("parameters"), status = document.getElementById("status"), show = document.getElementById("show");
const time = document.getElementById("time"), play = document.getElementById("play"), stop = document.getElementById("stop"), stepShown = document.getElementById("step");
const map = document.getElementById("map"), barsPlace = document.getElementById("bars");
let source = null, frames = [], about = null, lines = null, bars = null, timer = null, follow = true, due = false;

const showStatus = (text, bad = false) => { status.textContent = text; status.className = bad ? "note bad" : "note"; status.hidden = !text; };

function drawLines() {
  const steps = frames.map((frame) => frame.step), theory = about.theory, all = theory ? [...new Set([...steps, ...theory.x])].sort((a, b) => a - b) : steps;
  const column = (xs, ys) => { const found = new Map(xs.map((x, k) => [x, ys[k]])); return all.map((x) => found.has(x) ? found.get(x) : null); };
  const columns = about.lines.map((_, k) => column(steps, frames.map((frame) => frame.lines[k])));
  if (theory) columns.push(column(theory.x, theory.y));
  lines.set(all, columns);
}
function drawMap(frame) {
  const canvas = map.querySelector("canvas"), brush = canvas.getContext("2d"), { rows, columns, what } = about.map;
  const left = 84, top = 22, wide = Math.max(18, Math.floor((canvas.parentElement.clientWidth - left) / columns.length)), tall = Math.max(14, Math.min(34, Math.floor(320 / rows.length)));
  const scale = window.devicePixelRatio || 1, width = left + wide * columns.length, height = top + tall * rows.length;
  canvas.width = width * scale; canvas.height = height * scale; canvas.style.width = `${width}px`; canvas.style.height = `${height}px`;
  const ink = getComputedStyle(document.body).color;
  brush.scale(scale, scale); brush.font = "11px system-ui, sans-serif"; brush.textBaseline = "middle"; brush.fillStyle = ink;
  rows.forEach((name, r) => brush.fillText(name, 0, top + tall * (r + 0.5)));
  brush.textAlign = "center";
  columns.forEach((name, c) => brush.fillText(name.split(" ").pop(), left + wide * (c + 0.5), top / 2));
  frame.map.forEach((row, r) => row.forEach((value, c) => {
    brush.globalAlpha = 0.06 + 0.94 * value; brush.fillStyle = COLORS[0];
    brush.fillRect(left + wide * c + 1, top + tall * r + 1, wide - 2, tall - 2);
  }));
  brush.globalAlpha = 1;
  const strongest = rows.map((name, r) => [name, frame.map[r].reduce((a, b) => a + b, 0) / columns.length]).sort((a, b) => b[1] - a[1])[0];
  canvas.setAttribute("aria-label", `Attention map at step ${frame.step}; most attention on ${strongest[0]}: ${strongest[1].toFixed(3)} on average`);
  map.querySelector("figcaption").textContent = what;
}
function showFrame(number) {
  const frame = frames[number];
  if (!frame) return;
  stepShown.textContent = frame.step; time.value = number; time.setAttribute("aria-valuetext", `step ${frame.step}`);
  if (about.map) drawMap(frame);
  if (about.bars) bars.set(about.bars.labels.map(Number), [frame.bars, about.bars.theory]);
}
function redraw() {
  if (due) return;
  due = true;
  requestAnimationFrame(() => { due = false; drawLines(); time.max = Math.max(0, frames.length - 1); if (follow) showFrame(frames.length - 1); });
}
function begin(found) {
  about = found; frames = []; follow = true;
  show.hidden = false; map.hidden = !about.map; barsPlace.hidden = !about.bars;
  const series = about.lines.map((label) => ({ label }));
  if (about.theory) series.push({ label: "theory", dash: [6, 5], stroke: QUIET });
  lines = chart(document.getElementById("lines"), series, { name: form.dataset.scene, xLabel: about.x, yLabel: about.y, logX: !!about.log });
  if (about.bars) bars = chart(barsPlace, [{ label: about.bars.name, points: true }, { label: about.bars.theory_name, dash: [6, 5], stroke: QUIET }], { name: `${form.dataset.scene}-levels`, xLabel: about.bars.x, yLabel: about.bars.y, height: 260 });
}
function end(text, bad = false) {
  source?.close(); source = null; stop.hidden = true; form.querySelector("button.main").disabled = false;
  showStatus(text, bad);
}
form.addEventListener("submit", (event) => {
  event.preventDefault();
  source?.close(); halt();
  const numbers = new URLSearchParams(new FormData(form));
  history.replaceState(null, "", `?${numbers}`);
  showStatus("Starting …"); stop.hidden = false; form.querySelector("button.main").disabled = true;
  source = new EventSource(`/dynamics/${form.dataset.scene}/play?${numbers}`);
  source.addEventListener("start", (event) => { showStatus("Training …"); begin(JSON.parse(event.data)); });
  source.addEventListener("frame", (event) => { frames.push(JSON.parse(event.data)); redraw(); });
  source.addEventListener("end", (event) => end(["Finished; move the slider to see it again.", ...JSON.parse(event.data).notes].join(" ")));
  source.addEventListener("fault", (event) => end(JSON.parse(event.data).error, true));
  source.onerror = async () => {  // a refusal is not an event stream: fetch it again for its message
    if (!source) return;
    const answer = await fetch(`/dynamics/${form.dataset.scene}/play?${numbers}`).catch(() => null);
    if (answer && !answer.ok) end((await answer.json()).error, true);
    else { answer?.body?.cancel(); end("The server does not respond; is 'whichtoken serve' still running?", true); }
  };
});
stop.addEventListener("click", () => end("Stopped; the computed steps stay."));
time.addEventListener("input", () => { follow = +time.value === frames.length - 1; showFrame(+time.value); });
function halt() { clearInterval(timer); timer = null; play.textContent = "Play"; play.setAttribute("aria-pressed", "false"); }
play.addEventListener("click", () => {
  if (timer) { halt(); return; }
  follow = false; play.textContent = "Pause"; play.setAttribute("aria-pressed", "true");
  let number = +time.value >= frames.length - 1 ? 0 : +time.value;
  timer = setInterval(() => { showFrame(number); if (++number >= frames.length) halt(); }, 80);
});
