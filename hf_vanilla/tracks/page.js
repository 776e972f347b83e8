// The page of `page.py`; `component.js` precedes it. All positions are in units of
// the world; y points up.

const plane = part("plane");
const HEIGHT_SHARE = 0.6; // height of the plane by its width
const MARGIN = 0.08;
const SECONDS_BETWEEN = 0.06; // from the appearance of one future to the next
const HOW = "Draw a path with the pressed mouse button, or with a finger.";

let settings = null;
let view = null; // left, top and width of the plane that is shown
let agents = [];
let lanes = []; // of the scene
let agent = 0; // selected
let mode = -1; // selected; -1: none
let path = null; // points of the path that is being drawn

const onScreen = ([x, y]) => [x - view.left, view.top - y];
const asText = (points) => points.map((point) => onScreen(point).map((n) => n.toFixed(3)).join(",")).join(" ");

const line = (points, kind, parent = plane) => shape("polyline", { points: asText(points), class: kind }, parent);

function setView(left, top, width) {
  view = { left, top, width };
  plane.setAttribute("viewBox", `0 0 ${width} ${width * HEIGHT_SHARE}`);
  plane.style.setProperty("--line", `${width / 400}px`);
}

function showAll() {
  const points = agents.flatMap((a) => [...a.past, ...a.truth, ...a.tracks.flat()]);
  if (!points.length) return;
  const [xs, ys] = [0, 1].map((axis) => points.map((point) => point[axis]));
  const [left, right, low, high] = [Math.min(...xs), Math.max(...xs), Math.min(...ys), Math.max(...ys)];
  const width = Math.max(right - left, (high - low) / HEIGHT_SHARE, 1e-3) * (1 + 2 * MARGIN);
  setView((left + right - width) / 2, (low + high + width * HEIGHT_SHARE) / 2, width);
}

function paint() {
  plane.replaceChildren();
  lanes.forEach((points) => line(points, "lane"));
  agents.forEach((shown, index) => {
    line(shown.past, "grip").dataset.agent = index; // room for a finger
  });
  agents.forEach((shown, index) => {
    const name = index === agent ? "agent selected" : "agent";
    const group = shape("g", { class: name, "data-agent": index }, plane);
    const strongest = shown.probabilities[0];
    shown.tracks.map((track, rank) => [track, rank]).reverse().forEach(([track, rank]) => {
      const future = line([shown.past.at(-1), ...track], "future", group);
      future.dataset.mode = rank;
      future.style.setProperty("--shade", 0.1 + 0.9 * (shown.probabilities[rank] / strongest));
      future.style.setProperty("--delay", `${rank * SECONDS_BETWEEN}s`);
    });
    line([shown.past.at(-1), ...shown.straight], "straight", group);
    if (shown.truth.length) line(shown.truth, "truth", group);
    line(shown.past, "past", group);
  });
  listModes();
  look();
}

function listModes() {
  const shown = agents[agent];
  part("modes").replaceChildren(
    ...(shown ? shown.probabilities : []).map((probability, rank) => {
      const option = document.createElement("span");
      option.setAttribute("role", "option");
      option.dataset.mode = rank;
      option.tabIndex = rank === Math.max(mode, 0) ? 0 : -1;
      option.textContent = settings.isJoint ? `${rank + 1}` : `${Math.round(probability * 100)} %`;
      return option;
    }),
  );
}

// Mark the selected future, of a joint model for all agents, and draw the attention weights on the
// observed steps; lines to other agents, and lanes, are as wide as the weight on all their steps.
function look() {
  plane.querySelectorAll(".look, .glance, .future.chosen").forEach((old) => {
    old.classList.contains("chosen") ? old.classList.remove("chosen") : old.remove();
  });
  for (const option of part("modes").children) {
    option.setAttribute("aria-selected", String(Number(option.dataset.mode) === mode));
  }
  const shown = agents[agent];
  part("said").textContent = describe(shown);
  if (!shown || mode < 0) return;
  const group = plane.querySelector(`g[data-agent="${agent}"]`);
  (settings.isJoint ? plane : group).querySelectorAll(`[data-mode="${mode}"]`).forEach((future) => {
    future.classList.add("chosen");
  });
  const glance = (points, weight) => {
    if (!weight) return;
    const drawn = line(points, "glance", group);
    drawn.style.strokeWidth = weight * view.width * 0.04;
    drawn.dataset.weight = weight;
  };
  shown.others.forEach((weight, index) => {
    if (index !== agent) glance([shown.past.at(-1), agents[index].past.at(-1)], weight);
  });
  shown.lanes.forEach((weight, index) => glance(lanes[index], weight));
  (shown.looks[mode] ?? []).forEach((weight, index) => {
    if (!weight) return;
    const [cx, cy] = onScreen(shown.past[index]);
    const circle = shape("circle", { cx, cy, r: Math.sqrt(weight) * view.width * 0.02, class: "look" }, group);
    circle.dataset.weight = weight;
  });
}

function describe(shown) {
  if (!shown) return "";
  const who = `Agent ${shown.name}, ${agent + 1} of ${agents.length}`;
  const count = shown.tracks.length;
  if (mode < 0) return `${who}: ${count} ${count === 1 ? "future" : "futures"}.`;
  const odds = settings.isJoint ? "" : `, ${percent(shown.probabilities[mode])}`;
  const weights = shown.looks[mode] ?? [];
  const most = weights.indexOf(Math.max(...weights)) + 1;
  const where = most ? ` It looks most at step ${most} of ${weights.length}.` : "";
  return `${who}: future ${mode + 1} of ${count}${odds}.${where}`;
}

function choose(nextAgent, nextMode) {
  const isOther = nextAgent !== agent;
  [agent, mode] = [nextAgent, nextMode];
  if (isOther) paint();
  else look();
}

async function ask(name, value) {
  const answer = await call(name, value);
  if (!answer) return;
  part("message").textContent = answer.error ?? "";
  if (answer.error) return;
  agents = answer.agents;
  lanes = answer.lanes ?? [];
  [agent, mode] = [Math.min(agent, Math.max(agents.length - 1, 0)), -1];
  if (source() !== null) showAll();
  if (!agents.length) part("message").textContent = "Nobody here has two observed steps.";
  paint();
}

// --- where the tracks come from -----------------------------------------------------------------

function source() {
  const chosen = part("source").value;
  return chosen === "draw" ? null : settings.scenes[Number(chosen)];
}

function chooseSource() {
  const scene = source();
  for (const name of ["draw", "frame"]) cancel(name); // an answer for the last source is not shown
  part("stepper").hidden = scene === null;
  agents = [];
  lanes = [];
  if (scene === null) {
    setView(-settings.width / 2, (settings.width * HEIGHT_SHARE) / 2, settings.width);
    paint();
    part("message").textContent = HOW;
    return;
  }
  const slider = part("frame");
  [slider.min, slider.max, slider.step] = [scene.first, scene.last, scene.step];
  slider.value = scene.first + scene.step * (settings.observed - 1);
  showFrame();
}

function showFrame() {
  part("frame-number").textContent = `frame ${part("frame").value}`;
  ask("frame", { scene: source().number, frame: Number(part("frame").value) });
}

function step(by) {
  const slider = part("frame");
  slider.value = Number(slider.value) + by * source().step;
  showFrame();
}

function pointOf(event) {
  const box = plane.getBoundingClientRect();
  const perPixel = view.width / box.width;
  return [view.left + (event.clientX - box.left) * perPixel, view.top - (event.clientY - box.top) * perPixel];
}

plane.addEventListener("pointerdown", (event) => {
  const group = event.target.closest("[data-agent]");
  if (group && source() !== null) choose(Number(group.dataset.agent), Number(event.target.dataset.mode ?? -1));
  if (source() !== null) return;
  cancel("draw"); // an answer to the last path is not shown
  path = [pointOf(event)];
  agents = [];
  paint();
  plane.setPointerCapture(event.pointerId);
});

plane.addEventListener("pointermove", (event) => {
  if (path) {
    path.push(pointOf(event));
    plane.querySelector(".drawing")?.remove();
    line(path, "past drawing");
  } else if (event.target.dataset.mode) {
    choose(Number(event.target.closest("[data-agent]").dataset.agent), Number(event.target.dataset.mode));
  }
});

plane.addEventListener("pointerup", () => {
  if (!path) return;
  const drawn = path;
  path = null;
  if (drawn.some((point) => `${point}` !== `${drawn[0]}`)) ask("draw", drawn);
  else part("message").textContent = HOW;
});

plane.addEventListener("pointercancel", () => {
  path = null;
  plane.querySelector(".drawing")?.remove();
});

plane.addEventListener("keydown", (event) => {
  const [toAgent, toMode] =
    { ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowDown: [0, 1], ArrowUp: [0, -1] }[event.key] ?? [0, 0];
  if (!agents.length || (!toAgent && !toMode)) return;
  event.preventDefault();
  const inside = (value, lowest, count) => Math.min(count - 1, Math.max(lowest, value));
  if (toAgent) choose(inside(agent + toAgent, 0, agents.length), -1);
  else choose(agent, inside(mode + toMode, -1, agents[agent].tracks.length));
});

part("modes").addEventListener("pointerover", (event) => {
  if (event.target.dataset.mode) choose(agent, Number(event.target.dataset.mode));
});
part("modes").addEventListener("focusin", (event) => choose(agent, Number(event.target.dataset.mode)));
part("modes").addEventListener("keydown", (event) => {
  const by = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
  if (!by) return;
  event.preventDefault();
  part("modes").children[Number(event.target.dataset.mode) + by]?.focus();
});

part("source").addEventListener("change", chooseSource);
part("frame").addEventListener("change", showFrame);
part("back").addEventListener("click", () => step(-1));
part("next").addEventListener("click", () => step(1));
for (const name of ["truth", "straight"]) {
  part(`show-${name}`).addEventListener("change", ({ target }) => plane.classList.toggle(`with-${name}`, target.checked));
}

call("start", {}).then((found) => {
  settings = found;
  part("about-joint").hidden = !found.isJoint;
  part("about-others").hidden = !found.looksAtOthers;
  part("about-lanes").hidden = !found.hasLanes;
  const seconds = (steps) => `${(steps * found.stepSeconds).toFixed(1)} s`;
  made("span", found.model, part("about"), { class: "model", title: found.model });
  part("about").append(
    `: ${found.observed} observed steps (${seconds(found.observed)}), ` +
      `${found.predicted} predicted (${seconds(found.predicted)}), positions in ${found.unit}.`,
  );
  found.scenes.forEach((scene, index) => part("source").add(new Option(`scene ${scene.name}`, index)));
  chooseSource();
});
