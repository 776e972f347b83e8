"""fairseq's transformer written slow and obvious from its tables, and archives in its layout.

It shares no line with the package: one sentence at a time, no padding, no cache, a loop over heads.
"""

import argparse
import io
import math
from collections import Counter

import sacremoses
import sentencepiece
import torch
from subword_nmt import apply_bpe, learn_bpe
from torch.nn.functional import layer_norm, linear

BOS, PAD, EOS, UNK = range(4)
SPECIAL = ["<s>", "<pad>", "</s>", "<unk>"]
EPS = 1e-5

ENGLISH = (
    "the little house stands by the big lake .",
    "well-known people can't swim in a lake , can they ?",
    'she said : " the house & the lake are 3.5 km away " .',
    "Mr. Smith doesn't like big houses ; he likes lakes !",
    "the big , big house is a small lake",
)
GERMAN = (
    "das kleine Haus steht am großen See .",
    "bekannte Leute können nicht in einem See schwimmen , oder ?",
    'sie sagte : " das Haus & der See sind 3,5 km entfernt " .',
    "Herr Schmidt mag keine großen Häuser ; er mag Seen !",
    "das große , große Haus ist ein kleiner See",
)
# unseen words, unseen letters, runs of spaces, entities, typed special tokens
AWKWARD = (
    "The lake (big) costs €5 — “isn't it”?",
    "  état-major   & <b> [x] 100%  ",
    "中文 字 a@@ b @-@ </s> <unk> &amp;",
    "x",
    "it's 'quoted' Mr. Smith... 1,000.5 U.S. e.g. this.",
    "ﬁne ½ Å é",
)

SIZES = {
    "encoder_embed_dim": 24,
    "encoder_layers": 2,
    "encoder_attention_heads": 3,
    "encoder_ffn_embed_dim": 29,
    "decoder_embed_dim": 24,
    "decoder_layers": 3,
    "decoder_attention_heads": 2,
    "decoder_ffn_embed_dim": 31,
    "max_source_positions": 53,
    "max_target_positions": 53,
}


def settings(**others):
    """What `args` of a fairseq checkpoint says."""
    return {
        **SIZES,
        "arch": "transformer_iwslt_de_en",
        "task": "translation",
        "criterion": "label_smoothed_cross_entropy",
        "label_smoothing": 0.2,
        "source_lang": "en",
        "target_lang": "de",
        "dropout": 0.3,
        "relu_dropout": 0.05,
        "attention_dropout": 0.07,
        "share_all_embeddings": False,
        "share_decoder_input_output_embed": True,
        "encoder_normalize_before": False,
        "decoder_normalize_before": False,
        "adaptive_softmax_cutoff": None,
        **others,
    }


# --- text ----------------------------------------------------------------------------------------


def moses(sentence, language):
    tokenizer = sacremoses.MosesTokenizer(lang=language)
    return tokenizer.tokenize(sentence, aggressive_dash_splits=True, return_str=True)


def learned_codes(sentences, merges=60):
    """A file of BPE codes as subword-nmt writes it."""
    codes = io.StringIO()
    learn_bpe.learn_bpe(io.StringIO("\n".join(sentences)), codes, merges)
    return codes.getvalue()


def as_fastbpe(codes):
    """The same merges as fastBPE writes them."""
    return "".join(f"{line} 7\n" for line in codes.splitlines()[1:])


def cut_with(codes):
    return apply_bpe.BPE(io.StringIO(codes)).process_line


def dictionary(lines, *, least=1):
    """Words by count; the last ones are there only to fill the size up."""
    counts = Counter(word for line in lines for word in line.split())
    words = [word for word, count in counts.most_common() if count >= least]
    return [*SPECIAL, *words, "madeupword0000", "madeupword0001"]


def dictionary_file(words):
    return "".join(f"{word} {number + 1}\n" for number, word in enumerate(words[4:]))


def ids_of(words, line):
    return [words.index(w) if w in words else UNK for w in line.split()] + [EOS]


def joined(words, ids):
    """Text of ids as fairseq writes it, its `<unk>` and Moses left aside."""
    line = " ".join(words[i] for i in ids if i > UNK)
    return (line + " ").replace("@@ ", "").rstrip()


def sentencepiece_model(path, kind, size=120):
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(ENGLISH + GERMAN),
        model_prefix=str(path.with_suffix("")),
        vocab_size=size,
        hard_vocab_limit=False,
        model_type=kind,
        minloglevel=2,
    )
    return sentencepiece.SentencePieceProcessor(model_file=str(path))


# --- weights -------------------------------------------------------------------------------------


def weights(said, source_size, target_size, *, is_old=False):
    """Random weights under fairseq's names, in the layout of today or of 2018."""
    found = {}
    for side, size in (("encoder", source_size), ("decoder", target_size)):
        d, f = said["encoder_embed_dim"], said[f"{side}_ffn_embed_dim"]
        is_same = side == "decoder" and said["share_all_embeddings"]
        table = found["encoder.embed_tokens.weight"] if is_same else torch.randn(size, d) * d**-0.5
        found[f"{side}.embed_tokens.weight"] = table
        found[f"{side}.version"] = torch.tensor([3.0])
        if said.get(f"{side}_learned_pos"):
            rows = said["max_source_positions"] + 2
            found[f"{side}.embed_positions.weight"] = torch.randn(rows, d) * 0.3
        else:
            found[f"{side}.embed_positions._float_tensor"] = torch.zeros(1)
        for n in range(said[f"{side}_layers"]):
            put_layer(found, f"{side}.layers.{n}", side, (d, f), is_old=is_old)
    put_output(found, said, target_size, is_old=is_old)
    return found


def put_layer(found, name, side, sizes, *, is_old):
    d, f = sizes
    attentions = ["self_attn", "encoder_attn"][: 1 + (side == "decoder")]
    for attention in attentions:
        if is_old:
            found[f"{name}.{attention}.in_proj_weight"] = torch.randn(3 * d, d) * d**-0.5
            found[f"{name}.{attention}.in_proj_bias"] = torch.randn(3 * d) * 0.2
        for part in ["out"] if is_old else ["k", "v", "q", "out"]:
            found[f"{name}.{attention}.{part}_proj.weight"] = torch.randn(d, d) * d**-0.5
            found[f"{name}.{attention}.{part}_proj.bias"] = torch.randn(d) * 0.2
    norms = [*(f"{a}_layer_norm" for a in attentions), "final_layer_norm"]
    for number, norm in enumerate(norms):
        stem = f"{name}.layer_norms.{number}" if is_old else f"{name}.{norm}"
        found[f"{stem}.weight"] = 1 + torch.randn(d) * 0.2
        found[f"{stem}.bias"] = torch.randn(d) * 0.2
    found |= {
        f"{name}.fc1.weight": torch.randn(f, d) * 0.3,
        f"{name}.fc1.bias": torch.randn(f) * 0.1,
    }
    found |= {
        f"{name}.fc2.weight": torch.randn(d, f) * 0.3,
        f"{name}.fc2.bias": torch.randn(d) * 0.1,
    }


def lively(found):
    """Weights whose next word depends on the place, so that sentences vary; positions learned."""
    for name in found:
        if "bias" in name or "fc2" in name or "encoder_attn.out_proj" in name:
            found[name] *= 0.2
    found["decoder.embed_positions.weight"] *= 10
    return found


def put_output(found, said, size, *, is_old):
    is_tied = said["share_all_embeddings"] or said["share_decoder_input_output_embed"]
    if is_tied and is_old:
        return
    drawn = torch.randn(size, said["encoder_embed_dim"]) * 0.3
    output = found["decoder.embed_tokens.weight"] if is_tied else drawn
    found["decoder.embed_out" if is_old else "decoder.output_projection.weight"] = output


def write_archive(folder, said, found, files, *, name="model.pt", is_nested=False):
    """A folder as the archives of fairseq have it; `files` are texts by name."""
    folder.mkdir(parents=True, exist_ok=True)
    for file, text in files.items():
        (folder / file).write_text(text, encoding="utf-8")
    checkpoint = {"model": found, "extra_state": {"epoch": 3}, "last_optimizer_state": None}
    checkpoint |= (
        {"cfg": nested(said), "args": None} if is_nested else {"args": argparse.Namespace(**said)}
    )
    torch.save(checkpoint, folder / name, _use_new_zipfile_serialization=is_nested)
    return folder


def nested(said):
    """The same settings as today's fairseq stores them."""
    task = {"_name": said["task"], **{k: said[k] for k in ("source_lang", "target_lang")}}
    criterion = {"_name": said["criterion"], "label_smoothing": said["label_smoothing"]}
    model = {"_name": said["arch"], "encoder": {}, "decoder": {}}
    for key, value in said.items():
        side, _, rest = key.partition("_")
        if side in ("encoder", "decoder"):
            model[side][rest] = value
        elif key not in (*task, *criterion, "arch", "task", "criterion"):
            model[key] = value
    return {"common": {"seed": 1}, "task": task, "criterion": criterion, "model": model}


# --- the model -----------------------------------------------------------------------------------


def position(place, width):
    """Row of the table; the first token stands at 2, behind the padding at 1."""
    half = width // 2
    angles = [place * math.exp(-i * math.log(10000) / (half - 1)) for i in range(half)]
    return torch.tensor([math.sin(a) for a in angles] + [math.cos(a) for a in angles])


def embedded(found, said, side, ids):
    d = said["encoder_embed_dim"]
    scale = 1.0 if said.get("no_scale_embedding") else math.sqrt(d)
    learned = found.get(f"{side}.embed_positions.weight")
    rows = []
    for place, i in enumerate(ids, start=PAD + 1):
        where = position(place, d) if learned is None else learned[place]
        rows.append(scale * found[f"{side}.embed_tokens.weight"][i] + where)
    return torch.stack(rows)


def projections(found, name):
    if f"{name}.in_proj_weight" in found:
        pairs = [found[f"{name}.in_proj_{kind}"].chunk(3) for kind in ("weight", "bias")]
        return list(zip(*pairs, strict=True))
    return [(found[f"{name}.{p}_proj.weight"], found[f"{name}.{p}_proj.bias"]) for p in "qkv"]


def attend(found, name, heads, queries, keys, *, is_causal=False):
    q_of, k_of, v_of = projections(found, name)
    q, k, v = linear(queries, *q_of), linear(keys, *k_of), linear(keys, *v_of)
    width = q.shape[1] // heads
    result = torch.zeros_like(q)
    for h in range(heads):
        part = slice(h * width, (h + 1) * width)
        scores = q[:, part] @ k[:, part].T / math.sqrt(width)
        if is_causal:
            later = torch.ones_like(scores).triu(1).bool()
            scores = scores.masked_fill(later, -math.inf)
        result[:, part] = scores.softmax(-1) @ v[:, part]
    return linear(result, found[f"{name}.out_proj.weight"], found[f"{name}.out_proj.bias"])


def normed(found, layer, norm, number, values):
    old = f"{layer}.layer_norms.{number}.weight" in found
    stem = f"{layer}.layer_norms.{number}" if old else f"{layer}.{norm}"
    weight, bias = found[f"{stem}.weight"], found[f"{stem}.bias"]
    return layer_norm(values, weight.shape, weight, bias, EPS)


def fed(found, layer, values, activation):
    inner = linear(values, found[f"{layer}.fc1.weight"], found[f"{layer}.fc1.bias"])
    return linear(activation(inner), found[f"{layer}.fc2.weight"], found[f"{layer}.fc2.bias"])


def encoded(found, said, ids, activation=torch.relu):
    x = embedded(found, said, "encoder", ids)
    for n in range(said["encoder_layers"]):
        layer = f"encoder.layers.{n}"
        heard = attend(found, f"{layer}.self_attn", said["encoder_attention_heads"], x, x)
        x = normed(found, layer, "self_attn_layer_norm", 0, x + heard)
        x = normed(found, layer, "final_layer_norm", 1, x + fed(found, layer, x, activation))
    return x


def logits(found, said, source, target, activation=torch.relu):
    """`(T, V)`: what follows each of the target ids, which begin with the end token."""
    memory = encoded(found, said, source, activation)
    x = embedded(found, said, "decoder", target)
    heads = said["decoder_attention_heads"]
    for n in range(said["decoder_layers"]):
        layer = f"decoder.layers.{n}"
        heard = attend(found, f"{layer}.self_attn", heads, x, x, is_causal=True)
        x = normed(found, layer, "self_attn_layer_norm", 0, x + heard)
        heard = attend(found, f"{layer}.encoder_attn", heads, x, memory)
        x = normed(found, layer, "encoder_attn_layer_norm", 1, x + heard)
        x = normed(found, layer, "final_layer_norm", 2, x + fed(found, layer, x, activation))
    for name in ("output_projection.weight", "embed_out", "embed_tokens.weight"):
        if f"decoder.{name}" in found:
            return x @ found[f"decoder.{name}"].T
    raise KeyError("no output")


def beam_search(next_log_probs, longest, beam=5):
    """fairseq's search: log probability per token of the best sequence, and it without its start.

    Two candidates per beam; an end counts among the first `beam` only; it stops at `beam`
    finished hypotheses.
    """
    open_ones, finished = [(0.0, [EOS])], []
    for step in range(longest + 1):
        candidates = []
        for score, ids in open_ones:
            log_probs = next_log_probs(ids).clone()
            log_probs[PAD] = -math.inf
            if step == 0:
                log_probs[EOS] = -math.inf
            if step == longest:
                log_probs[:EOS], log_probs[EOS + 1 :] = -math.inf, -math.inf
            best = log_probs.topk(min(2 * beam, len(log_probs)))
            candidates += [
                (score + value, [*ids, i])
                for value, i in zip(best.values.tolist(), best.indices.tolist(), strict=True)
            ]
        candidates = sorted(candidates, key=lambda c: -c[0])[: 2 * beam]
        for score, ids in candidates[:beam]:
            if ids[-1] == EOS and len(finished) < beam and score > -math.inf:
                finished.append((score / (step + 1), ids[1:]))
        if len(finished) == beam:
            break
        open_ones = [c for c in candidates if c[1][-1] != EOS][:beam]
    return max(finished, key=lambda f: f[0])
