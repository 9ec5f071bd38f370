// A recording: four optimizers turn the same matrix to four certified limits.
const runs = document.getElementById("runs"), time = document.getElementById("time"), play = document.getElementById("play"), step = document.getElementById("step");
const SIZE = 108, color = (name) => `rgb(${getComputedStyle(document.documentElement).getPropertyValue(name)})`;
const recorded = await (await fetch("/static/limits.json")).json();
const make = (tag, words = "", place = null) => { const made = document.createElement(tag); made.textContent = words; place?.append(made); return made; };

function drawing(place, label) {
  const figure = make("figure", "", place), canvas = make("canvas", "", figure), scale = window.devicePixelRatio || 1;
  make("figcaption", label, figure);
  canvas.setAttribute("role", "img"); canvas.width = canvas.height = SIZE * scale; canvas.style.width = canvas.style.height = `${SIZE}px`;
  const brush = canvas.getContext("2d"), positive = color("--for"), negative = color("--against"), cell = SIZE / recorded.dim;
  brush.scale(scale, scale);
  return (matrix, words) => {
    brush.clearRect(0, 0, SIZE, SIZE);
    matrix.forEach((value, k) => {
      brush.fillStyle = value < 0 ? negative : positive; brush.globalAlpha = Math.abs(value) / 100;
      brush.fillRect(cell * (k % recorded.dim), cell * Math.floor(k / recorded.dim), cell - 1, cell - 1);
    });
    canvas.setAttribute("aria-label", words);
  };
}
const shown = recorded.runs.map((run) => {
  const card = make("section", "", runs), head = make("h2", run.name, card), pair = make("div", "", card), cosine = make("p", "", card);
  card.setAttribute("aria-label", run.name); head.className = "small"; pair.className = "pair"; cosine.className = "number";
  const live = make("a", "Run it live", card), p = run.name.match(/p = ([\d.]+)/);
  live.href = `/dynamics/direction?optimizer=${run.optimizer}${p ? `&p=${p[1]}` : ""}`;
  const matrix = drawing(pair, "in training"), limit = drawing(pair, `${run.geometry} limit`);
  limit(run.limit, `The certified ${run.geometry} limit of ${run.name}; duality gap ${run.gap}`);
  return (frame) => { matrix(frame.matrix, `Matrix of ${run.name} at step ${frame.step}`); cosine.textContent = `cosine ${frame.cosine.toFixed(3)}`; };
});
function show(number) {
  recorded.runs.forEach((run, k) => shown[k](run.frames[number]));
  const at = recorded.runs[0].frames[number].step;
  step.textContent = at; time.value = number; time.setAttribute("aria-valuetext", `step ${at}`);
}
let timer = null;
function halt() { clearInterval(timer); timer = null; play.textContent = "Play"; play.setAttribute("aria-pressed", "false"); }
function start() {
  let number = +time.value >= +time.max ? 0 : +time.value;
  play.textContent = "Pause"; play.setAttribute("aria-pressed", "true");
  timer = setInterval(() => { show(number); if (++number > +time.max) halt(); }, 140);
}
time.max = Math.min(...recorded.runs.map((run) => run.frames.length)) - 1;
time.addEventListener("input", () => { halt(); show(+time.value); });
play.addEventListener("click", () => timer ? halt() : start());
const still = matchMedia("(prefers-reduced-motion: reduce)").matches;
show(still ? +time.max : 0);
if (!still) start();
