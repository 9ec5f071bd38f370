// Lines with uPlot in the page's colors, to be saved as a picture or as numbers.
import uPlot from "./uplot/uPlot.esm.js";
import { svgOf } from "./svg.js";

export const COLORS = ["#2f80ed", "#e06c00", "#00a37a", "#c05fa5", "#e50045", "#9326ff", "#117338"];  // those of figures
export const QUIET = "#808894";  // theory and limits, readable on white and on black
const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const color = (line, place) => line.stroke || COLORS[place % COLORS.length];

function save(name, address) {
  const link = document.createElement("a");
  link.download = name; link.href = address; link.click();
}

/** A chart in `place`. `series`: [{label, stroke, dash, points}]; `set(x, columns)` redraws. */
export function chart(place, series, { name = "figure", xLabel = "", yLabel = "", logX = false, height = 320 } = {}) {
  place.classList.add("chart");
  place.setAttribute("role", "figure");
  place.setAttribute("aria-label", `${yLabel || name} against ${xLabel}`);
  let plot = null, shown = [[]], bars = [], floor = null;
  const canvas = document.createElement("div"), tools = document.createElement("div");
  tools.className = "tools";
  place.replaceChildren(canvas, tools);
  const button = (text, act) => {
    const made = document.createElement("button");
    made.type = "button"; made.textContent = text; made.addEventListener("click", act); tools.append(made);
  };
  button("PNG", () => {
    const source = plot.ctx.canvas, copy = document.createElement("canvas"), brush = copy.getContext("2d");
    copy.width = source.width; copy.height = source.height;
    brush.fillStyle = style("--paper") || "#fff"; brush.fillRect(0, 0, copy.width, copy.height); brush.drawImage(source, 0, 0);
    save(`${name}.png`, copy.toDataURL("image/png"));
  });
  button("SVG", () => {
    const lines = series.map((one, k) => ({ ...one, color: color(one, k) }));
    const drawn = svgOf(plot, lines, { xLabel, yLabel, ink: style("--ink"), rule: style("--line"), paper: style("--paper") });
    save(`${name}.svg`, URL.createObjectURL(new Blob([drawn], { type: "image/svg+xml" })));
  });
  button("CSV", () => {
    const head = [xLabel || "x", ...series.map((one) => one.label)].map((text) => `"${text.replaceAll('"', '""')}"`).join(",");
    const lines = shown[0].map((x, k) => shown.map((column) => column[k] ?? "").join(","));
    save(`${name}.csv`, URL.createObjectURL(new Blob([[head, ...lines].join("\n") + "\n"], { type: "text/csv" })));
  });
  const axis = (label, log) => ({
    label, stroke: () => style("--quiet"), grid: { stroke: () => style("--line"), width: 1 }, ticks: { stroke: () => style("--line") },
    labelSize: 22, size: label && !log ? 56 : 50, font: "12px system-ui, sans-serif", labelFont: "12px system-ui, sans-serif",
    values: (_, splits) => splits.map((value) => value === null ? "" : Math.abs(value) >= 1e6 || (value && Math.abs(value) < 1e-3) ? value.toExponential(0) : `${+value.toPrecision(3)}`),
  });
  const make = () => {
    plot?.destroy();
    plot = new uPlot({
      width: Math.max(240, canvas.clientWidth), height, padding: [8, 24, 0, 0],
      scales: { x: { time: false, distr: logX ? 3 : 1 }, y: { range: floor === null ? undefined : (_, low, high) => [Math.min(floor, low), high + 0.05 * (high - floor || 1)] } },
      axes: [axis(xLabel, logX), axis(yLabel)],
      series: [{ label: xLabel || "x" }, ...series.map((one, k) => ({
        label: one.label, stroke: color(one, k), width: one.hidden ? 0 : 2, dash: one.dash, points: { show: one.points ?? false, size: 6 },
        value: (_, value) => value === null ? "–" : `${+value.toPrecision(4)}`, spanGaps: true,
      }))],
      bands: bars, cursor: { y: false },
      legend: { live: true, markers: { dash: (_, k) => { const [line, gap] = series[k - 1]?.dash ?? [1, 0]; return line < gap ? "dotted" : gap ? "dashed" : "solid"; } } },
    }, shown, canvas);
  };
  new ResizeObserver(() => plot && plot.setSize({ width: Math.max(240, canvas.clientWidth), height })).observe(canvas);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => plot?.redraw());
  return {
    set(x, columns, { bands = [], from = null } = {}) {
      const fresh = !plot; shown = [x, ...columns]; bars = bands; floor = from;
      if (fresh) make(); else plot.setData(shown);
    },
  };
}
