// What a visitor chooses about the search: in the controls, in a request, and in the address.

// names of controls, and in the address
const SAMPLING = ["temperature", "top_k", "top_p", "seed"];
const LENGTHS = ["min_new_tokens", "max_new_tokens"];

const isSampling = () => part("search").value === "sampling";
const textsOf = (names) => Object.fromEntries(names.map((name) => [name, part(name).value.trim()]));

// The settings in the controls, as a request has them.
function settingsAsked() {
  const found = { beams: Number(part("beams").value), lengths: textsOf(LENGTHS) };
  return isSampling() ? { ...found, sampling: textsOf(SAMPLING) } : found;
}

function showSettings({ beams, sampling, lengths }) {
  part("beams").value = String(beams);
  part("search").value = sampling ? "sampling" : "beams";
  for (const [name, text] of Object.entries({ ...sampling, ...lengths })) part(name).value = text;
  showFields();
}

function showFields() {
  part("sampling").hidden = !isSampling();
  part("counted").textContent = isSampling() ? "Samples" : "Beams";
}

// The names and values of the settings in the address.
function settingsInAddress({ beams, sampling, lengths }) {
  return { b: beams, ...sampling, ...Object.fromEntries(Object.entries(lengths).filter(([, text]) => text)) };
}

// The settings in an address; null: they are none.
function settingsOf(fields) {
  const beams = fields.get("b") ?? String(settings.beams);
  if (!isCount(beams) || Number(beams) < 1 || Number(beams) > settings.maxBeams) return null;
  const textsIn = (names) => Object.fromEntries(names.map((name) => [name, fields.get(name) ?? ""]));
  const found = { beams: Number(beams), lengths: textsIn(LENGTHS) };
  return fields.has("seed") ? { ...found, sampling: textsIn(SAMPLING) } : found;
}
