// What a visitor chooses about the search: in the controls, in a request, and in the address.

const SAMPLING = ["temperature", "top_k", "top_p", "seed"]; // names of controls, and in the address

const isSampling = () => part("search").value === "sampling";

// The settings in the controls, as a request has them.
function settingsAsked() {
  const beams = Number(part("beams").value);
  if (!isSampling()) return { beams, phrases: part("phrases").value.trim() };
  return { beams, sampling: Object.fromEntries(SAMPLING.map((name) => [name, part(name).value.trim()])) };
}

function showSettings({ beams, phrases, sampling }) {
  part("beams").value = String(beams);
  part("search").value = sampling ? "sampling" : "beams";
  if (sampling) for (const name of SAMPLING) part(name).value = sampling[name];
  else part("phrases").value = phrases;
  showFields();
}

// Sampling takes no phrases: its fields are in their place.
function showFields() {
  part("sampling").hidden = !isSampling();
  part("phrases").parentElement.hidden = isSampling();
  part("counted").textContent = isSampling() ? "Samples" : "Beams";
}

// The names and values of the settings in the address.
function settingsInAddress({ beams, phrases, sampling }) {
  return { b: beams, ...(phrases ? { p: phrases } : {}), ...sampling };
}

// The settings in an address; null: they are none.
function settingsOf(fields) {
  const beams = fields.get("b") ?? String(settings.beams);
  const isWhole = isCount(beams) && Number(beams) >= 1 && Number(beams) <= settings.maxBeams;
  const hasSampling = fields.has("seed");
  if (!isWhole || (hasSampling && fields.has("p"))) return null;
  if (!hasSampling) return { beams: Number(beams), phrases: fields.get("p") ?? "" };
  return { beams: Number(beams), sampling: Object.fromEntries(SAMPLING.map((name) => [name, fields.get(name) ?? ""])) };
}
