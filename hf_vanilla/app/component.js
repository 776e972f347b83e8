// What the scripts of all pages share; `page.py` puts it in front of each. Names that come from models
// or visitors are set as text, never as HTML.

const element = document.getElementById("component");
const part = (name) => element.querySelector(`.${name}`);
const SVG = "http://www.w3.org/2000/svg";
const DARKEST = 0.75; // opacity of the colour over the cell of the largest weight
const page = element.firstElementChild;
const calls = {}; // number of the last call of each function

function made(name, text, parent, attributes = {}) {
  const child = document.createElement(name);
  child.textContent = text;
  for (const [key, value] of Object.entries(attributes)) child.setAttribute(key, value);
  parent?.append(child);
  return child;
}

function shape(name, attributes, parent, text) {
  const child = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) child.setAttribute(key, value);
  if (text !== undefined) child.textContent = text;
  parent?.append(child);
  return child;
}

// The answer of the service, whose `error` is a sentence.
function fetched(name, value) {
  const body = JSON.stringify(value ?? {});
  return fetch(`v1/view/${name}`, { method: "POST", headers: { "content-type": "application/json" }, body })
    .then((response) => response.json())
    .catch(() => ({ error: "The server does not answer." }));
}

// The answer of the service; null if it was called again or cancelled meanwhile.
async function call(name, value) {
  const number = (calls[name] ?? 0) + 1;
  calls[name] = number;
  page.setAttribute("aria-busy", "true");
  const found = await fetched(name, value);
  if (number !== calls[name]) return null;
  page.removeAttribute("aria-busy");
  return found;
}

function cancel(name) {
  calls[name] = (calls[name] ?? 0) + 1;
  page.removeAttribute("aria-busy");
}

const percent = (share, digits = 0) => `${(100 * share).toFixed(digits)} %`;

// bytes in base64
const numbers = (text) => Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));

// --- pictures -----------------------------------------------------------------------------------

// Call `receive` with the `data:` URL of each picture that is dropped or chosen.
function acceptPictures(receive) {
  const send = (file) => {
    if (!file) return;
    const reader = new FileReader();
    reader.addEventListener("load", () => {
      // a file of unknown type has a URL that names none
      receive(reader.result.replace(/^data:;?(?!.*base64,)/, "data:;base64,"));
    });
    reader.readAsDataURL(file);
  };
  const input = part("file");
  input.addEventListener("click", () => {
    input.value = ""; // the same file may be chosen again
  });
  input.addEventListener("change", () => send(input.files[0]));
  for (const kind of ["dragover", "drop"]) {
    element.addEventListener(kind, (event) => {
      event.preventDefault(); // the browser would open the file
      if (kind !== "drop") return;
      input.value = "";
      send(event.dataTransfer.files[0]);
    });
  }
}

// The answer of `look` to a picture, with its decoded image; null: it is late, or an error, which is
// shown in place of the results. The results appear when they can be drawn: nothing moves.
async function lookAt(request) {
  const found = await call("look", request);
  if (!found) return null;
  const number = calls.look;
  const image = new Image();
  if (!found.error) {
    image.src = found.image;
    await image.decode();
    if (number !== calls.look) return null;
  }
  part("problem").textContent = found.error ?? "";
  part("results").hidden = Boolean(found.error);
  return found.error ? null : { found, image };
}

// Colour each cell of a grid over a picture; weights are from 0 to 1.
function colourCells(canvas, [rows, columns], weights) {
  const drawing = canvas.getContext("2d");
  const [high, wide] = [canvas.height / rows, canvas.width / columns];
  weights.forEach((weight, index) => {
    drawing.fillStyle = `rgb(249 115 22 / ${DARKEST * weight})`;
    drawing.fillRect((index % columns) * wide, Math.floor(index / columns) * high, wide, high);
  });
}
