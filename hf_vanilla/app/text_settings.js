// What a visitor chooses about the search: in the controls, in a request, and in the address.

const SAMPLING = ["temperature", "top_k", "top_p", "seed"]; // names of controls, and in the address

const isSampling = () => part("search").value === "sampling";

// The settings in the controls, as a request has them.
function settingsAsked() {
  const found = { beams: Number(part("beams").value) };
  if (part("split").checked) found.split = part("language").value.trim();
  if (!isSampling()) return { ...found, phrases: part("phrases").value.trim() };
  return { ...found, sampling: Object.fromEntries(SAMPLING.map((name) => [name, part(name).value.trim()])) };
}

function showSettings({ beams, phrases, sampling, split }) {
  part("beams").value = String(beams);
  part("search").value = sampling ? "sampling" : "beams";
  if (sampling) for (const name of SAMPLING) part(name).value = sampling[name];
  else part("phrases").value = phrases;
  part("split").checked = split !== undefined;
  if (split !== undefined) part("language").value = split;
  showFields();
}

// Sampling takes no phrases: its fields are in their place. A language is needed to split.
function showFields() {
  part("sampling").hidden = !isSampling();
  part("phrases").parentElement.hidden = isSampling();
  part("counted").textContent = isSampling() ? "Samples" : "Beams";
  part("language").hidden = !part("split").checked;
}

// The names and values of the settings in the address.
function settingsInAddress({ beams, phrases, sampling, split }) {
  return { b: beams, ...(phrases ? { p: phrases } : {}), ...sampling, ...(split === undefined ? {} : { split }) };
}

// The settings in an address; null: they are none.
function settingsOf(fields) {
  const beams = fields.get("b") ?? String(settings.beams);
  const isWhole = isCount(beams) && Number(beams) >= 1 && Number(beams) <= settings.maxBeams;
  const hasSampling = fields.has("seed");
  if (!isWhole || (hasSampling && fields.has("p"))) return null;
  const found = { beams: Number(beams), split: fields.get("split") ?? undefined };
  if (!hasSampling) return { ...found, phrases: fields.get("p") ?? "" };
  return { ...found, sampling: Object.fromEntries(SAMPLING.map((name) => [name, fields.get(name) ?? ""])) };
}
