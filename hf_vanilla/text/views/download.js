// The picture as PNG or SVG, and the answer as JSON, to save.
import { colours, made, shape } from "./drawing.js";

const panelPicture = () => document.querySelector(".panel svg");

function save(content, type, name) {
  const address = URL.createObjectURL(new Blob([content], { type }));
  made("a", "", null, { href: address, download: `hf_vanilla_${name}` }).click();
  setTimeout(() => URL.revokeObjectURL(address), 60_000);
}

function svgText() {
  const svg = panelPicture().cloneNode(true);
  svg.prepend(shape("rect", { width: "100%", height: "100%", fill: colours().ground }));
  for (const name of ["aria-hidden", "focusable"]) svg.removeAttribute(name);
  for (const marked of svg.querySelectorAll("[data-click]")) marked.remove(); // places for a pointer
  return new XMLSerializer().serializeToString(svg);
}

/** Save what is shown: `kind` is png, svg or json. */
export async function download(kind, view, answer) {
  if (kind === "json") return save(JSON.stringify(answer), "application/json", `${view}.json`);
  const text = svgText();
  if (kind === "svg") return save(text, "image/svg+xml", `${view}.svg`);
  const image = new Image();
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(text)}`;
  await image.decode();
  const canvas = made("canvas", "", null, { width: 2 * image.naturalWidth, height: 2 * image.naturalHeight });
  canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
  canvas.toBlob((blob) => save(blob, "image/png", `${view}.png`));
}
