// The page of `page.py`; `component.js` precedes it.

const canvas = part("picture");

let answer = null; // of the last picture
let picture = null;
let chosen = null; // { object } or { place }, an index; null: nothing

// --- weights ------------------------------------------------------------------------------------

const direction = () => element.querySelector("[name=direction]:checked").value;

// one weight for each position, from 0 to 1
function chosenWeights() {
  const places = answer.grid[0] * answer.grid[1];
  if (chosen.object !== undefined) {
    const start = chosen.object * places;
    return Array.from(answer.cross.slice(start, start + places), (weight) => weight / 255);
  }
  const all = Array.from({ length: places }, (_, index) => index);
  const at = (row, column) => answer.largest[row] * answer.encoder[row * places + column];
  const weights = all.map((i) => (direction() === "from" ? at(chosen.place, i) : at(i, chosen.place)));
  const largest = Math.max(...weights) || 1;
  return weights.map((weight) => weight / largest);
}

// what can be chosen in this picture
function hint() {
  const hasPlaces = answer.encoder.length > 0; // not of a very large picture
  if (part("boxes").children.length) {
    return `Choose a box to see what its query attends to${hasPlaces ? ", or a position in the picture" : ""}.`;
  }
  const choice = hasPlaces ? " Choose a position in the picture to see what it attends to." : "";
  return `No object has a score of ${part("percent").textContent} or more.${choice}`;
}

function describe(weights) {
  const [, columns] = answer.grid;
  const place = (index) => `row ${Math.floor(index / columns) + 1}, column ${(index % columns) + 1}`;
  const most = place(weights.indexOf(Math.max(...weights)));
  if (chosen.object !== undefined) {
    const { label } = answer.objects[chosen.object];
    return `The query of "${label}" attends most to ${most}.`;
  }
  const what = direction() === "from" ? "attends most to" : "gets most attention from";
  return `The position ${place(chosen.place)} ${what} ${most}.`;
}

function show() {
  const drawing = canvas.getContext("2d");
  drawing.drawImage(picture, 0, 0, canvas.width, canvas.height);
  part("direction").hidden = chosen?.place === undefined;
  for (const box of part("boxes").children) {
    box.ariaPressed = String(Number(box.dataset.object) === chosen?.object);
  }
  canvas.dataset.weights = "";
  part("said").textContent = hint();
  if (!chosen) return;
  const weights = chosenWeights();
  const [rows, columns] = answer.grid;
  const [high, wide] = [canvas.height / rows, canvas.width / columns];
  colourCells(canvas, answer.grid, weights);
  if (chosen.place !== undefined) {
    drawing.lineWidth = 3;
    drawing.strokeStyle = "rgb(14 116 144)";
    const [row, column] = [Math.floor(chosen.place / columns), chosen.place % columns];
    drawing.strokeRect(column * wide, row * high, wide, high);
  }
  canvas.dataset.weights = weights.map((weight) => Math.round(weight * 255)).join(" ");
  part("said").textContent = describe(weights);
}

// --- boxes --------------------------------------------------------------------------------------

function showBoxes() {
  const threshold = Number(part("score").value);
  part("percent").textContent = `${Math.round(100 * threshold)} %`;
  part("boxes").replaceChildren();
  answer.objects.forEach(({ label, score, box }, object) => {
    if (score < threshold) return;
    const button = part("boxes").appendChild(document.createElement("button"));
    const [left, top, right, bottom] = box.map((side) => Math.min(1, Math.max(0, side)));
    Object.assign(button, { type: "button", title: `${label}, ${(100 * score).toFixed(0)} %` });
    button.ariaLabel = button.title;
    button.dataset.object = object;
    const name = button.appendChild(document.createElement("span"));
    name.textContent = button.title;
    const sides = { left, top, width: right - left, height: bottom - top };
    for (const [side, share] of Object.entries(sides)) button.style[side] = `${100 * share}%`;
    button.style.zIndex = Math.round(1e6 * (1 - sides.width * sides.height)); // small ones can be clicked
    button.addEventListener("click", () => {
      chosen = chosen?.object === object ? null : { object };
      show();
    });
  });
  if (chosen?.object !== undefined && answer.objects[chosen.object].score < threshold) chosen = null;
  show();
}

// --- pictures -----------------------------------------------------------------------------------

async function ask(url) {
  const looked = await lookAt({ picture: url });
  if (!looked) return;
  const { found, image } = looked;
  answer = { ...found, cross: numbers(found.cross), encoder: numbers(found.encoder) };
  [picture, chosen] = [image, null];
  // small pictures are drawn larger, and shown as large as their room
  const scale = Math.max(1, Math.floor(480 / Math.max(image.naturalWidth, image.naturalHeight)));
  canvas.width = image.naturalWidth * scale;
  canvas.height = image.naturalHeight * scale;
  const ratio = canvas.width / canvas.height;
  part("scene").style.width = `min(100%, calc(var(--room) * ${ratio}))`;
  canvas.getContext("2d").imageSmoothingEnabled = scale === 1;
  showBoxes();
}

function choosePlace(row, column) {
  const [rows, columns] = answer.grid;
  if (!answer.encoder.length) return;
  const inside = (value, count) => Math.min(count - 1, Math.max(0, value));
  chosen = { place: inside(row, rows) * columns + inside(column, columns) };
  show();
}

canvas.addEventListener("click", (event) => {
  const box = canvas.getBoundingClientRect();
  const row = Math.floor(((event.clientY - box.top) / box.height) * answer.grid[0]);
  choosePlace(row, Math.floor(((event.clientX - box.left) / box.width) * answer.grid[1]));
});
canvas.addEventListener("keydown", (event) => {
  const steps = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
  if (!(event.key in steps)) return;
  event.preventDefault();
  const [rows, columns] = answer.grid;
  const middle = Math.floor(rows / 2) * columns + Math.floor(columns / 2);
  const place = chosen?.place ?? middle;
  const [down, right] = chosen?.place === undefined ? [0, 0] : steps[event.key];
  choosePlace(Math.floor(place / columns) + down, (place % columns) + right);
});
part("results").addEventListener("keydown", (event) => {
  if (event.key !== "Escape") return;
  chosen = null;
  show();
});
part("score").addEventListener("input", showBoxes);
for (const radio of element.querySelectorAll("[name=direction]")) {
  radio.addEventListener("change", show);
}
acceptPictures(ask);
