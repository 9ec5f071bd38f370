// A chart as a drawing that scales: the axes, lines, bands and names that uPlot has put on its canvas.
const plain = (text) => String(text).replace(/[&<>"]/g, (character) => `&#${character.charCodeAt(0)};`);
const ROW = 18;  // pixels of a line of the legend

/** `lines`: [{label, color, dash, hidden, points}]; `look`: {xLabel, yLabel, ink, rule, paper}. */
export function svgOf(plot, lines, look) {
  const scale = window.devicePixelRatio || 1, [left, top, wide, tall] = ["left", "top", "width", "height"].map((name) => plot.bbox[name] / scale);
  const x = (value) => (left + plot.valToPos(value, "x")).toFixed(1), y = (value) => (top + plot.valToPos(value, "y")).toFixed(1);
  const [xs, ...columns] = plot.data, parts = [];
  const text = (words, at, extra = "") => parts.push(`<text x="${at[0]}" y="${at[1]}" fill="${look.ink}" ${extra}>${plain(words)}</text>`);
  const rule = (a, b, c, d) => parts.push(`<line x1="${a}" y1="${b}" x2="${c}" y2="${d}" stroke="${look.rule}"/>`);
  const ticks = (axis) => axis._splits.map((value, k) => [value, axis._values[k]]).filter(([value, words]) => value !== null && words !== "" && words !== null);
  for (const [value, words] of ticks(plot.axes[0])) { rule(x(value), top, x(value), top + tall); text(words, [x(value), top + tall + 16], 'text-anchor="middle"'); }
  for (const [value, words] of ticks(plot.axes[1])) { rule(left, y(value), left + wide, y(value)); text(words, [left - 6, +y(value) + 4], 'text-anchor="end"'); }
  const places = columns.map((column) => column.map((value, k) => value === null || value === undefined ? null : `${x(xs[k])},${y(value)}`).filter((place) => place !== null));
  for (const { series: [high, low], fill } of plot.bands) parts.push(`<polygon points="${[...places[high - 1], ...[...places[low - 1]].reverse()].join(" ")}" fill="${plain(typeof fill === "function" ? fill(plot) : fill)}"/>`);
  const shown = lines.map((line, k) => ({ ...line, places: places[k] })).filter((line) => !line.hidden);
  shown.forEach((line, k) => {
    const stroke = `stroke="${line.color}" stroke-width="2"${line.dash ? ` stroke-dasharray="${line.dash.join(" ")}"` : ""}`, row = top + tall + 58 + ROW * k;
    parts.push(`<polyline points="${line.places.join(" ")}" fill="none" ${stroke}/>`, `<line x1="${left}" x2="${left + 22}" y1="${row - 4}" y2="${row - 4}" ${stroke}/>`);
    if (line.points) for (const place of line.places) { const [cx, cy] = place.split(","); parts.push(`<circle cx="${cx}" cy="${cy}" r="3" fill="${line.color}"/>`); }
    text(line.label, [left + 30, row]);
  });
  text(look.xLabel, [left + wide / 2, top + tall + 36], 'text-anchor="middle"');
  text(look.yLabel, [14, top + tall / 2], `text-anchor="middle" transform="rotate(-90 14 ${top + tall / 2})"`);
  const width = plot.width, height = top + tall + 58 + ROW * shown.length;
  return `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${width} ${height}" width="${width}" height="${height}" font-family="system-ui, sans-serif" font-size="12"><rect width="100%" height="100%" fill="${look.paper}"/>${parts.join("\n")}</svg>\n`;
}
