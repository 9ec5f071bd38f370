// Tables that filter and sort: <table data-filter> gets a form above it. <th data-choice> becomes a list of what its column
// holds, <th data-sort> a button; one field searches all the text, and what <tr data-search> adds to it. The address keeps the choice: #state=disagrees&text=rate. A long table
// begins with its first rows until something is chosen or all are asked for, so that it is no wall.
const FIRST = 40;
for (const table of document.querySelectorAll("table[data-filter]")) {
  const body = table.tBodies[0], rows = [...body.rows], heads = [...table.tHead.rows[0].cells];
  const cell = (row, column) => row.cells[column].dataset.value || row.cells[column].textContent.trim();
  const form = document.createElement("form"), said = document.createElement("output"), fields = new Map();
  form.className = "filters";
  form.setAttribute("role", "search");
  form.setAttribute("aria-label", "Filter the table");
  const add = (name, title, field) => {
    const label = document.createElement("label");
    label.append(title, field);
    form.append(label);
    fields.set(name, field);
  };
  const search = document.createElement("input");
  search.type = "search";
  add("text", "search", search);
  heads.forEach((head, column) => {
    if (!("choice" in head.dataset)) return;
    const select = document.createElement("select");
    select.append(new Option("any", ""));
    const choices = new Map(rows.map((row) => [cell(row, column), row.cells[column].textContent.trim()]));
    for (const [value, text] of [...choices].sort()) select.append(new Option(text, value));
    select.dataset.column = column;
    add(head.dataset.choice, head.textContent.trim(), select);
  });
  const reset = document.createElement("button");
  reset.type = "reset";
  reset.textContent = "Show all";
  form.append(reset, said);
  table.closest(".scroll, body").before(form);

  const texts = new Map(rows.map((row) => [row, `${row.textContent} ${row.dataset.search || ""}`.toLowerCase()]));
  let all = rows.length <= FIRST;
  const show = () => {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const chosen = [...fields.values()].filter((field) => field.dataset.column && field.value);
    const cut = !all && !words.length && !chosen.length;
    let shown = 0;
    for (const row of body.rows) {
      const fits = words.every((word) => texts.get(row).includes(word)) && chosen.every((field) => cell(row, field.dataset.column) === field.value);
      row.hidden = !fits || (cut && shown >= FIRST);
      shown += !row.hidden;
    }
    said.textContent = shown === rows.length ? `${rows.length} in all` : `${cut ? "the first " : ""}${shown} of ${rows.length}`;
  };
  const remember = () => {
    const kept = new URLSearchParams();
    for (const [name, field] of fields) if (field.value) kept.set(name, field.value);
    history.replaceState(null, "", `#${kept}`);
  };
  const recall = () => {
    const asked = new URLSearchParams(location.hash.slice(1));
    if (![...fields.keys()].some((name) => asked.has(name))) return;
    for (const [name, field] of fields) field.value = asked.get(name) || "";
    show();
    form.scrollIntoView();
  };
  form.addEventListener("input", () => { show(); remember(); });
  form.addEventListener("reset", () => { all = true; setTimeout(() => { show(); remember(); }); });
  form.addEventListener("submit", (event) => event.preventDefault());
  window.addEventListener("hashchange", recall);

  heads.forEach((head, column) => {
    if (!("sort" in head.dataset)) return;
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") === "ascending";
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const order = new Intl.Collator("en", { numeric: true });
      const sorted = [...rows].sort((one, other) => order.compare(cell(one, column), cell(other, column)) * (down ? -1 : 1));
      body.append(...sorted);
      show();
    });
  });
  show();
  recall();
}
