// What every page does: fetch parts that take longer, follow jobs, copy texts.

if ([].at && String.prototype.replaceAll) document.getElementById("old").remove();  // what the scripts of all pages use
const minutes = (seconds) => seconds < 90 ? `${Math.max(1, Math.round(seconds))} s` : `${Math.round(seconds / 60)} min`;

async function fetchPart(place) {
  const address = place.dataset.fragment;
  if (place.dataset.asked) return;
  place.dataset.asked = "yes";
  try {
    const answer = await fetch(address);
    const text = await answer.text();
    if (answer.ok) { place.innerHTML = text; }  // the server's own HTML, escaped there
    else say(place, JSON.parse(text).error, true);
  } catch (error) {
    say(place, "The server does not respond; is 'whichtoken serve' still running?", true);
  }
}

/** A user's text with control and bidi characters written as escapes, as the server's pages have it: none reverses the reading. */
export const visible = (text) => String(text).replace(/(?![\n\t\u200c\u200d])[\p{Cc}\p{Cf}\p{Cs}\p{Zl}\p{Zp}]/gu, (character) => {
  const code = character.codePointAt(0).toString(16);
  return code.length <= 2 ? `\\x${code.padStart(2, "0")}` : code.length <= 4 ? `\\u${code.padStart(4, "0")}` : `\\U${code.padStart(8, "0")}`;
});
export const element = (tag, text = "", kind = "") => {
  const made = document.createElement(tag);
  made.textContent = visible(text);
  if (kind) made.className = kind;
  return made;
};

export function say(place, sentence, bad = false) {
  const note = document.createElement("p");
  note.className = bad ? "note bad" : "note";
  note.setAttribute("role", bad ? "alert" : "status");
  note.textContent = visible(sentence);
  place.replaceChildren(note);
}

/** A request; what the server refuses is an error with its sentence and the field that it is about. */
async function send(address, options) {
  let answer;
  try { answer = await fetch(address, { headers: { accept: "application/json" }, ...options }); }
  catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error("The server does not respond; is 'whichtoken serve' still running?");
  }
  if (answer.ok) return answer;
  const { error, field } = await answer.json();
  throw Object.assign(new Error(error), { field });
}

export const ask = async (address, options = {}) => (await send(address, options)).json();

/** Say beside a field of a form what is wrong with it, or below the form if it is about none; without an error, all is well. */
export function refuse(form, error = null) {
  for (const old of form.querySelectorAll(".wrong")) old.remove();
  for (const field of form.querySelectorAll("[aria-invalid]")) { field.removeAttribute("aria-invalid"); field.removeAttribute("aria-describedby"); }
  if (!error) return;
  const note = element("small", error.message, "wrong"), found = error.field && (form.elements[error.field] ?? form.elements[`set.${error.field}`]), field = found instanceof RadioNodeList ? null : found;
  note.setAttribute("role", "alert");
  if (!field || field.type === "hidden") { form.append(note); return; }
  note.id = `wrong-${field.name}`;
  field.setAttribute("aria-invalid", "true");
  field.setAttribute("aria-describedby", note.id);
  (field.closest("label") ?? field.parentNode).append(note);
  field.focus();
}

function follow(id, { progress = () => {}, end = () => {} }) {
  const source = new EventSource(`/jobs/${id}/events`);
  source.addEventListener("progress", (event) => progress(JSON.parse(event.data)));
  source.addEventListener("end", (event) => { source.close(); end(JSON.parse(event.data)); });
  return source;
}

function watch(card) {
  const bar = card.querySelector("progress"), said = card.querySelector(".job-said"), state = card.querySelector(".job-state");
  const source = follow(card.dataset.job, {
    progress(now) {
      if (now.total) { bar.max = now.total; bar.value = now.done; }
      const left = now.left ? `, about ${minutes(now.left)} left` : "";
      const share = now.total ? `${Math.floor(100 * now.done / now.total)} %: ` : "";
      said.textContent = share + (now.said || `${now.done} of ${now.total} done${now.failed ? `, ${now.failed} failed` : ""}${left}`);
    },
    end(job) {  // a model or an inspection opens by itself where somebody waits for it; verdicts, buttons and the log are the server's
      const opens = job.page && job.state === "finished" && job.request.kind !== "claim" && location.pathname === `/jobs/${job.id}`;
      if (opens) location.replace(job.page); else location.reload();
    },
  });
  source.addEventListener("state", (event) => { state.textContent = JSON.parse(event.data).state; });
}

const whenSeen = new IntersectionObserver((entries) => {  // a figure is drawn when it is scrolled into view
  for (const entry of entries) if (entry.isIntersecting) { whenSeen.unobserve(entry.target); fetchPart(entry.target); }
}, { rootMargin: "200px" });
for (const place of document.querySelectorAll("[data-fragment]")) {
  const details = place.closest("details[data-lazy]");
  if (details) details.addEventListener("toggle", () => details.open && fetchPart(place));
  else if ("seen" in place.dataset) whenSeen.observe(place);
  else fetchPart(place);
}
for (const card of document.querySelectorAll('[data-job][data-open="yes"]')) watch(card);
for (const form of document.querySelectorAll("form[method=post]")) {
  form.addEventListener("submit", async (event) => {  // what was typed stays when something is wrong with it
    event.preventDefault();
    const button = event.submitter ?? form.querySelector("button"), before = button?.textContent;
    if (button) { button.disabled = true; button.textContent += " …"; }  // shows that it works, and a second click starts no second job
    try {
      const plain = form.enctype !== "multipart/form-data", body = plain ? new URLSearchParams(new FormData(form)) : new FormData(form);
      const answer = await send(form.action, { method: "POST", body });
      location.assign(answer.url);
    } catch (error) {
      refuse(form, error);
      if (button) { button.disabled = false; button.textContent = before; }
    }
  });
}
window.addEventListener("pageshow", (event) => { if (event.persisted) location.reload(); });
document.addEventListener("click", async (event) => {
  const button = event.target.closest("[data-copy]");
  if (!button) return;
  const before = button.textContent;
  await navigator.clipboard.writeText(document.getElementById(button.dataset.copy).textContent);
  button.textContent = "Copied";
  setTimeout(() => { button.textContent = before; }, 1500);
});
