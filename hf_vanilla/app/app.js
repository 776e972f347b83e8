// The attention view. Gradio gives `element`, which stays, and calls what `watch` is given
// whenever the server has sent another page of `attention_page.py` into it.

const PER_PERCENT = 10; // weights come in thousandths
const SAID = 5; // tokens that are told in words

const view = () => element.querySelector(".attention");
const tokens = (side) => [...view().querySelectorAll(`.${side} > .token`)];
const textOf = (token) => token.querySelector("bdi").textContent;

let weights = [];
let chosen = 0; // the token that looks, by its place; kept from page to page

function show(place) {
  chosen = Math.min(place, weights.length - 1);
  const row = weights[chosen];
  tokens("looking").forEach((token, i) => {
    token.setAttribute("aria-selected", String(i === chosen));
    token.tabIndex = i === chosen ? 0 : -1;
  });
  const lookedAt = tokens("looked-at");
  lookedAt.forEach((token, i) => {
    token.style.setProperty("--weight", row[i] / 1000);
    const percent = Math.round(row[i] / PER_PERCENT);
    token.querySelector(".percent").textContent = percent ? String(percent) : "";
  });
  const best = row.map((weight, i) => [weight, i]).sort((a, b) => b[0] - a[0]);
  const said = best.slice(0, SAID).filter(([weight]) => weight >= PER_PERCENT);
  const parts = said.map(([w, i]) => `“\u2068${textOf(lookedAt[i])}\u2069” ${Math.round(w / PER_PERCENT)} %`);
  const looking = textOf(tokens("looking")[chosen]);
  view().querySelector(".attention-told").textContent =
    `“\u2068${looking}\u2069” looked at ${parts.join(", ")}.`;
}

// Gradio shows a name above each group of buttons, but does not give it to the group.
function nameGroups() {
  for (const group of document.querySelectorAll("fieldset")) {
    group.ariaLabel = group.querySelector("[data-testid=block-info]").textContent.trim();
  }
}

function load() {
  if (!view()) return;
  setTimeout(nameGroups); // the groups beside it may be drawn after it
  weights = JSON.parse(view().dataset.weights);
  show(chosen);
}

function placeOf(event) {
  const token = event.target.closest?.(".looking > .token");
  return token ? Number(token.dataset.place) : null;
}

for (const kind of ["pointerover", "focusin", "click"]) {
  element.addEventListener(kind, (event) => {
    const place = placeOf(event);
    if (place !== null) show(place);
  });
}

element.addEventListener("keydown", (event) => {
  const place = placeOf(event);
  if (place === null) return;
  const isFromRight = event.target.closest(".tokens").dir === "rtl";
  const [before, after] = isFromRight ? ["ArrowRight", "ArrowLeft"] : ["ArrowLeft", "ArrowRight"];
  const last = weights.length - 1;
  const goal = {
    [before]: place - 1,
    [after]: place + 1,
    ArrowUp: place - 1,
    ArrowDown: place + 1,
    Home: 0,
    End: last,
  }[event.key];
  if (goal === undefined) return;
  event.preventDefault();
  tokens("looking")[Math.max(0, Math.min(goal, last))].focus();
});

watch("value", load);
load();
