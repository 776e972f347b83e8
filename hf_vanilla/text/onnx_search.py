"""Translate with ONNX Runtime; needs numpy, onnxruntime and tokenizers, nothing else.

    python translate.py < input.txt > output.txt
    translate.Translator("FOLDER").translate(["a sentence", "another one"])

The search is that of the model's `generate()`. The beams of a sentence share one row of the
decoder's cache, and a mask shows each its own past. B sentences, n beams, C slots of the cache.
"""

import argparse
import json
import signal
import sys
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from onnxruntime import InferenceSession, OrtValue, SessionOptions
from tokenizers import Tokenizer

LOWEST = -1e9  # score of what does not exist or may not be attended to
WINDOW = 2048  # lines sorted by length together
TOKENS_PER_BATCH = 1024  # sentences times longest source


@dataclass
class Hypothesis:
    """A translation; its score is the log-probability in nats over the length penalty."""

    ids: list[int]  # without the start token
    score: float
    text: str = ""


@dataclass
class Beams:
    """The search of one sentence."""

    limit: int  # most tokens of a hypothesis
    ids: list[list[int]]  # of each beam, with the start token
    scores: np.ndarray  # (n,) log-probability of each beam
    finished: list[Hypothesis] = field(default_factory=list)  # best first
    is_done: bool = False
    parents: Any = None  # (n,) beam of the last step that each beam continues


class Translator:
    """The models of a folder; `decoding` changes its generation config; 0 threads: all cores."""

    def __init__(
        self, folder: str | Path = Path(__file__).parent, *, threads: int = 0, **decoding: Any
    ) -> None:
        folder, options = Path(folder), SessionOptions()
        saved = json.loads((folder / "generation_config.json").read_text("utf-8"))
        settings = json.loads((folder / "tokenizer_config.json").read_text("utf-8"))
        given = {name: value for name, value in (saved | decoding).items() if value is not None}
        self.config = {"length_penalty": 1.0, "early_stopping": False, **given}
        self.beams, self.end = self.config.get("num_beams") or 1, self.config["eos_token_id"]
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.tokenizer.encode_special_tokens = settings.get("split_special_tokens", False)
        self.longest_source = int(min(settings["model_max_length"], 1_000_000))
        options.intra_op_num_threads, options.enable_mem_pattern = threads, False  # shapes change
        slow = ["SkipLayerNormFusion"]  # its kernel takes longer than those of its parts
        self.encoder = InferenceSession(folder / "encoder.onnx", options, disabled_optimizers=slow)
        self.decoder = InferenceSession(folder / "decoder.onnx", options, disabled_optimizers=slow)
        self.past_shapes = {i.name: i.shape for i in self.decoder.get_inputs() if "past" in i.name}

    def translate(self, sentences: list[str]) -> list[str]:
        """The best translation of each sentence, in order; a blank one has an empty one."""
        return [found[0].text if found else "" for found in self.n_best(sentences, 1)]

    def n_best(self, sentences: list[str], n: int) -> list[list[Hypothesis]]:
        """The n best hypotheses of each sentence, best first; a blank one has none."""
        if isinstance(sentences, str) or not 1 <= n <= self.beams:
            raise ValueError(f"n={n}: give a list of texts, and 1 to num_beams={self.beams}")
        rows = [encoding.ids for encoding in self.tokenizer.encode_batch(sentences)]
        for sentence, ids in zip(sentences, rows, strict=True):
            if len(ids) > self.longest_source:
                print(f"cut at {self.longest_source} tokens: {sentence:.50}", file=sys.stderr)
                del ids[self.longest_source - 1 : -1]  # keep the end token, the last one
        results: list[list[Hypothesis]] = [[] for _ in rows]
        order = [i for i, sentence in enumerate(sentences) if sentence.strip()]
        order.sort(key=lambda i: -len(rows[i]))
        while order:
            size = max(TOKENS_PER_BATCH // len(rows[order[0]]), 1)
            batch, order = order[:size], order[size:]
            for i, found in zip(batch, self.search([rows[i] for i in batch]), strict=True):
                results[i] = [replace(h, text=self.tokenizer.decode(h.ids)) for h in found[:n]]
        return results

    def search(self, rows: list[list[int]]) -> list[list[Hypothesis]]:
        """The n hypotheses of each row of source ids, best first, without their texts."""
        start = [[self.config["decoder_start_token_id"]]] * self.beams
        scores = np.array([0] + [LOWEST] * (self.beams - 1), np.float32)  # all beams are equal
        active = searches = [Beams(self._limit(len(ids)), start, scores) for ids in rows]
        state = self._encoded(rows)  # what the decoder reads of each sentence
        mask = np.zeros((len(rows), self.beams, 0), np.float32)  # (B, n, C)
        own_slots = np.where(np.eye(self.beams) == 1, 0, LOWEST).astype(np.float32)[None]
        length = 0  # of a hypothesis
        while active:
            mask = np.concatenate((mask, own_slots.repeat(len(active), 0)), axis=2)
            newest = np.array([[ids[-1] for ids in beams.ids] for beams in active])
            step = values(input_ids=newest, position=np.array([length]), beam_mask=mask)
            log_probs, tokens, *past = self.decoder.run_with_ort_values(None, state | step)
            state |= zip(self.past_shapes, past, strict=True)
            length += 1
            for beams, best, ids in zip(active, log_probs.numpy(), tokens.numpy(), strict=True):
                if not beams.is_done:
                    self._advance(beams, best, ids, length)
            parents = np.array([beams.parents for beams in active])
            mask = np.take_along_axis(mask, parents[:, :, None], axis=1)
            kept = [row for row, beams in enumerate(active) if not beams.is_done]
            if 8 * len(kept) <= 7 * len(active):  # some at once: it copies the cache of the others
                active, mask = [active[row] for row in kept], mask[kept]
                state = values(**{name: each.numpy()[kept] for name, each in state.items()})
        return [beams.finished for beams in searches]

    def _encoded(self, rows: list[list[int]]) -> dict[str, OrtValue]:
        """The source's mask, its keys and values, and an empty cache."""
        ids, mask = np.zeros((2, len(rows), max(map(len, rows))), np.int64)
        for row, given in enumerate(rows):
            ids[row, : len(given)], mask[row, : len(given)] = given, 1
        inputs = values(input_ids=ids, attention_mask=mask)
        names = [output.name for output in self.encoder.get_outputs()][1:]  # without the states
        state = dict(zip(names, self.encoder.run_with_ort_values(names, inputs), strict=True))
        for name, (_, heads, _, width) in self.past_shapes.items():
            state |= values(**{name: np.zeros((len(rows), heads, 0, width), np.float32)})
        return {**state, "attention_mask": inputs["attention_mask"]}

    def _advance(self, beams: Beams, log_probs: Any, tokens: Any, length: int) -> None:
        """Finish candidates that end, and continue the best others; both arrays are `(n, 2n)`."""
        beams.is_done = is_last = length == beams.limit
        beams.parents, others = range(self.beams), []
        if is_last and self.config.get("forced_eos_token_id") is not None:
            tokens[:], log_probs[:, 0], log_probs[:, 1:] = self.end, 0, LOWEST
        sums = (beams.scores[:, None] + log_probs).ravel()
        for rank, index in enumerate(np.argsort(-sums, kind="stable")[: 2 * self.beams].tolist()):
            parent, token = index // log_probs.shape[1], int(tokens.flat[index])
            ids = [*beams.ids[parent], token]
            if not is_last and token != self.end:
                others.append((ids, sums[index], parent))
            elif rank < self.beams:  # a candidate after the best n may not finish
                score = float(sums[index]) / self._penalty(length)
                beams.finished.append(Hypothesis(ids[1:], score))
        beams.finished = sorted(beams.finished, key=lambda one: -one.score)[: self.beams]
        if not is_last:
            beams.ids, scores, beams.parents = map(list, zip(*others[: self.beams], strict=True))
            beams.scores = np.array(scores)
            beams.is_done = len(beams.finished) == self.beams and self._is_over(beams, length)

    def _is_over(self, beams: Beams, length: int) -> bool:
        """Whether no beam can still get a better score than the worst of n finished hypotheses."""
        early = self.config["early_stopping"]
        has_bound = early == "never" and self.config["length_penalty"] > 0
        best = beams.scores[0] / self._penalty(beams.limit if has_bound else length)
        return early is True or self.beams == 1 or bool(best <= beams.finished[-1].score)

    def _penalty(self, length: int) -> float:
        is_gnmt = self.config.get("length_penalty_form") == "gnmt"
        return ((5 + length) / 6 if is_gnmt else length) ** self.config["length_penalty"]

    def _limit(self, source_length: int) -> int:
        """Most tokens of a translation; `max_length` counts the start token too."""
        whole = self.config.get("max_length") or sys.maxsize
        beyond = self.config.get("max_tokens_beyond_source", sys.maxsize)
        return self.config.get("max_new_tokens") or max(min(source_length + beyond, whole - 1), 1)


def values(**arrays: np.ndarray) -> dict[str, OrtValue]:
    """Arrays as ONNX Runtime takes them."""
    return {name: OrtValue.ortvalue_from_numpy(array) for name, array in arrays.items()}


def main() -> None:
    """Translate stdin, a sentence a line, to stdout."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--n_best", type=int, help="write so many hypotheses with their scores")
    parser.add_argument("--threads", type=int, default=0, help="default: one for each core")
    options = parser.parse_args()
    sys.stdout.reconfigure(encoding="utf-8")  # type: ignore[union-attr]  # a TextIOWrapper
    signal.signal(getattr(signal, "SIGPIPE", signal.SIGTERM), signal.SIG_DFL)  # if head closes it
    translator, number = Translator(threads=options.threads), 0
    while lines := [line.decode().rstrip("\r\n") for line in islice(sys.stdin.buffer, WINDOW)]:
        lines[0] = lines[0] if number else lines[0].removeprefix("\ufeff")  # byte order mark
        for found in translator.n_best(lines, 1 if options.n_best is None else options.n_best):
            number += 1
            for one in found if options.n_best else []:
                print(number, f"{one.score:.4f}", " ".join(one.text.split()), sep="\t")
            if not options.n_best:
                print(" ".join(found[0].text.split("\n")) if found else "")
        sys.stdout.flush()


if __name__ == "__main__":
    try:
        main()
    except (ValueError, OSError) as error:
        sys.exit(f"error: {error} {getattr(error, 'object', '')}".rstrip())  # the line not in UTF-8
