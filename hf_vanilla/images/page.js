// The page of `page.py`; `component.js` precedes it.

const pad = part("drawing");
const pen = pad.getContext("2d");
const PEN_SHARE = 0.11; // width of a line by the width of the drawing, as in data sets of digits
const ROLLOUT = "rollout";
const SHOWN_PIXELS = 160; // width of the picture of a head

let answer = null; // of the last picture
let picture = null; // what the model sees
let layer = null; // index, or ROLLOUT; kept when another picture comes
let last = null; // end of the line that is being drawn

// --- results ------------------------------------------------------------------------------------

function showLabels() {
  part("labels").replaceChildren();
  for (const { label, probability } of answer.labels) {
    const row = made("li", "", part("labels"));
    Object.assign(made("span", label, row), { className: "name", title: label });
    made("span", percent(probability, 1), row).className = "percent";
    row.style.setProperty("--share", probability);
  }
}

function showLayers() {
  const names = [...answer.weights.keys(), ROLLOUT];
  if (layer === null || !names.includes(layer)) layer = answer.weights.length - 1;
  const legend = part("layers").querySelector("legend");
  part("layers").replaceChildren(legend);
  for (const name of names) {
    const label = made("label", "", part("layers"));
    const radio = label.appendChild(document.createElement("input"));
    Object.assign(radio, { type: "radio", name: "layer", checked: name === layer });
    label.append(name === ROLLOUT ? " all, as rollout" : ` ${name}`);
    radio.addEventListener("change", () => {
      layer = name;
      showHeads();
    });
  }
}

function showHeads() {
  part("heads").replaceChildren();
  showPlain();
  if (layer === ROLLOUT) showWeights(answer.rollout, "attention rollout through all layers");
  else answer.weights[layer].forEach((weights, head) => showWeights(weights, `head ${head}`));
}

// The picture without weights, beside those with them.
function showPlain() {
  const figure = part("heads").appendChild(document.createElement("figure"));
  const text = "what the model sees";
  Object.assign(picture, { alt: text, width: SHOWN_PIXELS, height: shownHeight() });
  picture.classList.toggle("is-enlarged", picture.naturalWidth <= SHOWN_PIXELS);
  figure.append(picture);
  made("figcaption", text, figure);
}

const shownHeight = () => Math.round((SHOWN_PIXELS * picture.naturalHeight) / picture.naturalWidth);

function showWeights(weights, name) {
  const figure = part("heads").appendChild(document.createElement("figure"));
  const canvas = figure.appendChild(document.createElement("canvas"));
  canvas.width = SHOWN_PIXELS;
  canvas.height = shownHeight();
  const drawing = canvas.getContext("2d");
  drawing.imageSmoothingEnabled = picture.naturalWidth > SHOWN_PIXELS;
  drawing.drawImage(picture, 0, 0, canvas.width, canvas.height);
  const largest = Math.max(...weights, 1);
  colourCells(canvas, answer.grid, weights.map((weight) => weight / largest));
  const sum = weights.reduce((total, weight) => total + weight, 0);
  const text = `${name}: ${percent(sum / 1e6)} on patches`;
  canvas.role = "img";
  canvas.ariaLabel = text;
  canvas.dataset.weights = weights.join(" ");
  made("figcaption", text, figure);
}

// --- pictures -----------------------------------------------------------------------------------

async function ask(url, isDrawn) {
  const looked = await lookAt({ picture: url, isDrawn });
  if (!looked) return;
  [answer, picture] = [looked.found, looked.image];
  showLabels();
  showLayers();
  showHeads();
}

function clear() {
  pen.fillStyle = "black";
  pen.fillRect(0, 0, pad.width, pad.height);
}

function pointOf(event) {
  const box = pad.getBoundingClientRect();
  return [
    ((event.clientX - box.left) * pad.width) / box.width,
    ((event.clientY - box.top) * pad.height) / box.height,
  ];
}

function drawTo(point) {
  Object.assign(pen, { lineWidth: pad.width * PEN_SHARE, lineCap: "round", strokeStyle: "white" });
  pen.beginPath();
  pen.moveTo(...last);
  pen.lineTo(...point);
  pen.stroke();
  last = point;
}

pad.addEventListener("pointerdown", (event) => {
  last = pointOf(event);
  drawTo(last);
  pad.setPointerCapture(event.pointerId);
});
pad.addEventListener("pointermove", (event) => {
  if (last) drawTo(pointOf(event));
});
pad.addEventListener("pointerup", () => {
  if (!last) return;
  last = null;
  part("file").value = ""; // its name would be that of another picture
  ask(pad.toDataURL("image/png"), true);
});
pad.addEventListener("pointercancel", () => (last = null));

part("clear").addEventListener("click", () => {
  clear();
  part("file").value = "";
  cancel("look"); // an answer to the old drawing is not shown
  part("problem").textContent = "";
  part("results").hidden = true;
});

acceptPictures((url) => ask(url, false));
clear();
