// The page of `image_page.py`. Gradio provides `element`, and `server` with the function
// `look`. Names of labels are set as text, never as HTML.

const part = (name) => element.querySelector(`.${name}`);
const pad = part("drawing");
const pen = pad.getContext("2d");
const PEN_SHARE = 0.11; // width of a line by the width of the drawing, as in data sets of digits
const ROLLOUT = "rollout";
const SHOWN_PIXELS = 160; // width of the picture of a head
const DARKEST = 0.75; // opacity of the colour over the patch of the largest weight

let answer = null; // of the last picture
let picture = null; // what the model sees
let layer = null; // index, or ROLLOUT; kept when another picture comes
let asked = 0; // requests so far: only the answer to the last one is shown
let last = null; // end of the line that is being drawn

// --- results ------------------------------------------------------------------------------------

function made(name, text, parent) {
  const child = document.createElement(name);
  child.textContent = text;
  return parent.appendChild(child);
}

function showLabels() {
  part("labels").replaceChildren();
  for (const { label, probability } of answer.labels) {
    const row = made("li", "", part("labels"));
    made("span", label, row).className = "name";
    made("span", `${(100 * probability).toFixed(1)} %`, row).className = "percent";
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
  if (layer === ROLLOUT) showWeights(answer.rollout, "attention rollout through all layers");
  else answer.weights[layer].forEach((weights, head) => showWeights(weights, `head ${head}`));
}

function showWeights(weights, name) {
  const figure = part("heads").appendChild(document.createElement("figure"));
  const canvas = figure.appendChild(document.createElement("canvas"));
  canvas.width = SHOWN_PIXELS;
  canvas.height = Math.round((SHOWN_PIXELS * picture.naturalHeight) / picture.naturalWidth);
  const drawing = canvas.getContext("2d");
  drawing.imageSmoothingEnabled = picture.naturalWidth > SHOWN_PIXELS;
  drawing.drawImage(picture, 0, 0, canvas.width, canvas.height);
  const [rows, columns] = answer.grid;
  const [high, wide] = [canvas.height / rows, canvas.width / columns];
  const largest = Math.max(...weights, 1);
  weights.forEach((weight, index) => {
    drawing.fillStyle = `rgb(249 115 22 / ${(DARKEST * weight) / largest})`;
    drawing.fillRect((index % columns) * wide, Math.floor(index / columns) * high, wide, high);
  });
  const sum = Math.round(weights.reduce((total, weight) => total + weight, 0) / 10);
  const text = `${name}: ${sum} % on patches`;
  canvas.role = "img";
  canvas.ariaLabel = text;
  canvas.dataset.weights = weights.join(" ");
  made("figcaption", text, figure);
}

// --- pictures -----------------------------------------------------------------------------------

async function ask(url, isDrawn) {
  const number = ++asked;
  element.setAttribute("aria-busy", "true");
  const found = await server
    .look({ picture: url, isDrawn })
    .catch(() => ({ error: "The server does not answer." }));
  if (number !== asked) return;
  element.removeAttribute("aria-busy");
  part("problem").textContent = found.error ?? "";
  part("results").hidden = Boolean(found.error);
  if (found.error) return;
  const image = new Image();
  image.src = found.image;
  await image.decode();
  if (number !== asked) return;
  [answer, picture] = [found, image];
  showLabels();
  showLayers();
  showHeads();
}

function send(file) {
  if (!file) return;
  const reader = new FileReader();
  reader.addEventListener("load", () => {
    // a file of unknown type has a URL that names none
    ask(reader.result.replace(/^data:;?(?!.*base64,)/, "data:;base64,"), false);
  });
  reader.readAsDataURL(file);
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
  ask(pad.toDataURL("image/png"), true);
});
pad.addEventListener("pointercancel", () => {
  last = null;
});

part("clear").addEventListener("click", () => {
  clear();
  asked += 1; // an answer to the old drawing is not shown
  part("problem").textContent = "";
  part("results").hidden = true;
});

part("file").addEventListener("change", (event) => {
  send(event.target.files[0]);
  event.target.value = ""; // the same file may be chosen again
});
for (const kind of ["dragover", "drop"]) {
  element.addEventListener(kind, (event) => {
    event.preventDefault(); // the browser would open the file
    if (kind === "drop") send(event.dataTransfer.files[0]);
  });
}

clear();
