// What a visitor chooses about the search: in the controls, in a request, and in the address.

// names of controls, and in the address
const SAMPLING = ["temperature", "top_k", "top_p", "seed"];
const LENGTHS = ["min_new_tokens", "max_new_tokens"];

const isSampling = () => part("search").value === "sampling";
const textsOf = (names) => Object.fromEntries(names.map((name) => [name, part(name).value.trim()]));

// The settings in the controls, as a request has them.
function settingsAsked() {
  const found = { beams: Number(part("beams").value), lengths: textsOf(LENGTHS), markup: part("markup").checked };
  if (part("split").checked) found.split = part("language").value.trim();
  if (!isSampling()) return { ...found, phrases: part("phrases").value.trim() };
  return { ...found, sampling: textsOf(SAMPLING) };
}

function showSettings({ beams, phrases, sampling, lengths, markup, split }) {
  part("beams").value = String(beams);
  part("search").value = sampling ? "sampling" : "beams";
  for (const [name, text] of Object.entries({ ...sampling, ...lengths })) part(name).value = text;
  if (!sampling) part("phrases").value = phrases;
  part("markup").checked = markup;
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
function settingsInAddress({ beams, phrases, sampling, lengths, markup, split }) {
  const limits = Object.fromEntries(Object.entries(lengths).filter(([, text]) => text));
  const options = { ...(markup ? { markup: 1 } : {}), ...(split === undefined ? {} : { split }) };
  return { b: beams, ...(phrases ? { p: phrases } : sampling), ...limits, ...options };
}

// The settings in an address; null: they are none.
function settingsOf(fields) {
  const beams = fields.get("b") ?? String(settings.beams);
  const isWhole = isCount(beams) && Number(beams) >= 1 && Number(beams) <= settings.maxBeams;
  const hasSampling = fields.has("seed");
  if (!isWhole || (hasSampling && fields.has("p"))) return null;
  const textsIn = (names) => Object.fromEntries(names.map((name) => [name, fields.get(name) ?? ""]));
  const options = { lengths: textsIn(LENGTHS), markup: fields.has("markup"), split: fields.get("split") ?? undefined };
  const search = hasSampling ? { sampling: textsIn(SAMPLING) } : { phrases: fields.get("p") ?? "" };
  return { beams: Number(beams), ...options, ...search };
}
