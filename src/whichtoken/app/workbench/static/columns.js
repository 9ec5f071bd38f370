// Only the fields that the chosen kind of data needs.
const form = document.getElementById("columns"), kind = form.elements.kind, column = form.elements.column;
function show() {
  for (const label of form.querySelectorAll("[data-for]")) label.hidden = !label.dataset.for.split(" ").includes(kind.value);
  column.value = column.dataset[kind.value] || column.value;
}
kind.addEventListener("change", show);
show();
