// The attention figure of `attention_view.py`. Gradio provides `element`, which is not replaced, and
// calls the function given to `watch` whenever the server has sent new HTML into it.

const PER_PERCENT = 10; // weights are sent in thousandths
const LISTED = 5; // tokens in the summary

const view = () => element.querySelector(".attention");
const tokens = (side) => [...view().querySelectorAll(`.${side} > .token`)];
const textOf = (token) => token.querySelector("bdi").textContent;

let weights = [];
let selected = 0; // index of the query token; kept when a new figure comes

function show(index) {
  selected = Math.min(index, weights.length - 1);
  const row = weights[selected];
  tokens("queries").forEach((token, i) => {
    token.setAttribute("aria-selected", String(i === selected));
    token.tabIndex = i === selected ? 0 : -1;
  });
  const keys = tokens("keys");
  keys.forEach((token, i) => {
    token.style.setProperty("--weight", row[i] / 1000);
    const percent = Math.round(row[i] / PER_PERCENT);
    token.querySelector(".percent").textContent = percent ? String(percent) : "";
  });
  const best = row.map((weight, i) => [weight, i]).sort((a, b) => b[0] - a[0]);
  const heaviest = best.slice(0, LISTED).filter(([weight]) => weight >= PER_PERCENT);
  const parts = heaviest.map(([w, i]) => `“\u2068${textOf(keys[i])}\u2069” ${Math.round(w / PER_PERCENT)} %`);
  const query = textOf(tokens("queries")[selected]);
  view().querySelector(".attention-summary").textContent =
    `“\u2068${query}\u2069” attends to ${parts.join(", ")}.`;
}

// Gradio shows a label above each group of buttons, but does not set it as the accessible name.
function nameGroups() {
  for (const group of document.querySelectorAll("fieldset")) {
    group.ariaLabel = group.querySelector("[data-testid=block-info]").textContent.trim();
  }
}

function load() {
  if (!view()) return;
  setTimeout(nameGroups); // the groups may be drawn after the figure
  weights = JSON.parse(view().dataset.weights);
  show(selected);
}

function indexOf(event) {
  const token = event.target.closest?.(".queries > .token");
  return token ? Number(token.dataset.index) : null;
}

for (const kind of ["pointerover", "focusin", "click"]) {
  element.addEventListener(kind, (event) => {
    const index = indexOf(event);
    if (index !== null) show(index);
  });
}

element.addEventListener("keydown", (event) => {
  const index = indexOf(event);
  if (index === null) return;
  const isFromRight = event.target.closest(".tokens").dir === "rtl";
  const [before, after] = isFromRight ? ["ArrowRight", "ArrowLeft"] : ["ArrowLeft", "ArrowRight"];
  const last = weights.length - 1;
  const goal = {
    [before]: index - 1,
    [after]: index + 1,
    ArrowUp: index - 1,
    ArrowDown: index + 1,
    Home: 0,
    End: last,
  }[event.key];
  if (goal === undefined) return;
  event.preventDefault();
  tokens("queries")[Math.max(0, Math.min(goal, last))].focus();
});

watch("value", load);
load();
