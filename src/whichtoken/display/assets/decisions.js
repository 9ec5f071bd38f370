// Explanations that can be searched; what is folded is printed, too.
const form = document.querySelector("form.filters");
if (form) {
  const articles = [...document.querySelectorAll("article.decision")];
  const texts = articles.map((article) => article.textContent.toLowerCase());
  const lines = [...document.querySelectorAll(".overview tbody tr")];
  const apply = () => {
    const find = form.elements.find.value.trim().toLowerCase();
    const label = form.elements.label.value;
    let shown = 0;
    articles.forEach((article, place) => {
      const fits = texts[place].includes(find) && (!label || article.dataset.label === label);
      article.hidden = !fits;
      lines[place].hidden = !fits;
      shown += fits;
    });
    form.elements.count.value = shown === articles.length ? `${shown} shown` : `${shown} of ${articles.length} shown`;
  };
  form.hidden = false;
  form.addEventListener("input", apply);
  form.addEventListener("submit", (event) => event.preventDefault());
  apply();
}
let folded = [];
addEventListener("beforeprint", () => {
  folded = [...document.querySelectorAll("details:not([open])")];
  folded.forEach((part) => { part.open = true; });
});
addEventListener("afterprint", () => folded.forEach((part) => { part.open = false; }));
