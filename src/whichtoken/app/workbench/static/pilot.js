// The learning curve that a pilot promises, with its interval.
import { ask } from "./frame.js";
import { chart, COLORS } from "./chart.js";

const place = document.getElementById("curve");
if (place) {
  const { curve } = (await ask(place.dataset.state)).result, thin = { stroke: COLORS[0], dash: [3, 4] };
  const series = [{ label: "BagClassifier", points: true }, { label: "90 % interval, high", ...thin }, { label: "90 % interval, low", ...thin }];
  chart(place, series, { name: "pilot", xLabel: "bags", yLabel: "expected error", logX: true })
    .set(curve.samples, [curve.error, curve.high, curve.low], { bands: [{ series: [2, 3], fill: `${COLORS[0]}33` }], from: 0 });
}
