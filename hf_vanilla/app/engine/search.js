// Greedy and beam search (6.1) of one sentence, with the results of `generate()`; n beams. In Python:
// search_vanilla_beams.py, and n_best.py for what becomes of a candidate.

const SHOWN = 5; // candidates of a step of greedy search, which itself looks at one

/** What a log-probability is divided by: GNMT's penalty, or transformers' power of the length. */
function lengthPenalty(length, { form, alpha }) {
  return form === "gnmt" ? ((5 + length) / 6) ** alpha : length ** alpha;
}

/** The best continuations of all beams, best first; among equal ones, the first. */
function bestCandidates(active, logProbs, count) {
  const best = [];
  active.forEach((beam, parent) => {
    for (let id = 0; id < logProbs[parent].length; id++) {
      const logProb = Math.fround(beam.logProb + logProbs[parent][id]);
      if (best.length === count && !(logProb > best[count - 1].logProb)) continue;
      const place = best.findLastIndex((one) => one.logProb >= logProb) + 1;
      best.splice(place, 0, { id, parent, logProb });
      best.length = Math.min(best.length, count);
    }
  });
  if (!(best[0].logProb <= 0)) throw new Error("logits are NaN: a weight of the model is NaN or infinite");
  return best.map((one) => ({ ...one, ids: [...active[one.parent].ids, one.id] }));
}

/**
 * Search for the best translation, with `Decoder.read` and what `Model.settings` returns: yields `{ length, limit }`
 * after each step, and returns hypotheses and the candidates of each step, best first.
 */
export function* search(read, settings) {
  const { beams, limit, earlyStopping, startId, endIds } = settings;
  const isGreedy = beams === 1;
  const count = isGreedy ? SHOWN : Math.max(2, 1 + endIds.size) * beams; // n go on even if every beam ends
  const steps = [];
  let active = [{ ids: [], logProb: 0, place: -1 }], logProbs = read([startId], [0]), finished = [];
  for (let length = 1; ; length++) {
    const candidates = bestCandidates(active, logProbs, count);
    candidates.forEach((one, place) => {
      const penalty = lengthPenalty(length, settings), isEnd = length === limit || endIds.has(one.id);
      const score = Math.fround(one.logProb / penalty);
      Object.assign(one, { place, isEnd, penalty, score, from: active[one.parent].place });
    });
    steps.push(candidates);
    const ended = candidates.slice(0, beams).filter((one) => one.isEnd); // not after the best n
    finished = [...finished, ...ended].sort((a, b) => b.score - a.score).slice(0, beams); // equal ones stay in order
    active = candidates.filter((one) => !one.isEnd).slice(0, beams);
    yield { length, limit };
    const isFull = finished.length === beams;
    if (!active.length || (isFull && (isGreedy || earlyStopping === true))) break;
    // the paper's bound is the penalty of the longest hypothesis; otherwise, it is the present one
    const last = earlyStopping === "never" && settings.alpha > 0 ? limit : length;
    if (isFull && !(active[0].logProb / lengthPenalty(last, settings) > finished[beams - 1].score)) break;
    logProbs = read(active.map((one) => one.id), active.map((one) => one.parent));
  }
  return { hypotheses: finished, steps: steps.map((step) => described(step, finished, step === steps.at(-1), settings)) };
}

/** Candidates of a step with what became of each: kept, finished, pruned or stopped. */
function described(step, finished, isLast, { beams, endIds }) {
  let kept = 0;
  return step.map((one) => {
    const { id, from: parent, logProb, penalty, score } = one, rank = finished.indexOf(one);
    const isEnd = endIds.has(id) || (isLast && rank >= 0);
    let status = "pruned";
    if (isEnd && one.place < beams) status = "finished";
    if (!isEnd && kept++ < beams) status = isLast ? "stopped" : "kept";
    return { id, parent, logProb, penalty, score, status, rank: status === "finished" ? rank : -1 };
  });
}
