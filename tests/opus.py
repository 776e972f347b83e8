"""An OPUS-MT folder in miniature: random weights, and SentencePiece models trained on the spot."""

import io
import json

import sentencepiece
import torch
from transformers import MarianConfig, MarianMTModel, MarianTokenizer

SOURCES = (
    "a house by the lake",
    "the little house stands by the big lake",
    "one boat, two boats: who counts them?",
)
TARGETS = (
    "ein Haus am See",
    "das kleine Haus steht am großen See",
    "ein Boot, zwei Boote: wer zählt sie?",
)
SMALL = {
    "vocab_size": 43,
    "d_model": 12,
    "encoder_layers": 2,
    "encoder_attention_heads": 3,
    "encoder_ffn_dim": 29,
    "decoder_layers": 3,
    "decoder_attention_heads": 2,
    "decoder_ffn_dim": 31,
    "max_position_embeddings": 64,
    "activation_function": "swish",
    "scale_embedding": True,
    "eos_token_id": 0,
    "forced_eos_token_id": 0,
}
# which sides share a table, as MarianConfig says it
SHARINGS = {
    "one table": {},
    "output apart": {"tie_word_embeddings": False},
    "source apart": {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": 47},
    "three tables": {
        "share_encoder_decoder_embeddings": False,
        "decoder_vocab_size": 47,
        "tie_word_embeddings": False,
    },
}


@torch.no_grad()
def marian_model(**changes):
    """A MarianMTModel in which no weight has the value that a missing one would get."""
    settings = {**SMALL, **changes}
    pad = {"pad_token_id": settings["vocab_size"] - 1}  # the last one, as in OPUS-MT
    pad["decoder_start_token_id"] = pad["pad_token_id"]
    model = MarianMTModel(MarianConfig(**{**pad, **settings})).eval()
    for name, weight in model.named_parameters():
        if "embed_positions" not in name:
            # small biases and large matrices: what it writes depends on what it reads
            weight.add_(torch.randn_like(weight), alpha=0.1 if weight.dim() == 1 else 0.7)
    model.final_logits_bias.normal_(std=0.3)
    pad_token_id = model.config.pad_token_id
    for table in (model.model.encoder.embed_tokens, model.model.decoder.embed_tokens):
        table.weight[pad_token_id] = 0
    decoding = model.generation_config
    decoding.num_beams, decoding.max_length, decoding.length_penalty = 4, 23, 0.7
    decoding.bad_words_ids = [[pad_token_id]]
    decoding._from_model_config = False
    return model


def write_tokenizer(folder, *, separate=False):
    """Its files; returns how many words the source and the target have."""
    folder.mkdir(parents=True, exist_ok=True)
    pieces = []
    for side, sentences in (("source", SOURCES), ("target", TARGETS)):
        trained = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(sentences * 5),
            model_writer=trained,
            vocab_size=50,
            hard_vocab_limit=False,
            num_threads=1,
            minloglevel=2,
        )
        (folder / f"{side}.spm").write_bytes(trained.getvalue())
        model = sentencepiece.SentencePieceProcessor(model_proto=trained.getvalue())
        pieces.append({model.id_to_piece(i) for i in range(model.get_piece_size())})
    if not separate:
        pieces = [pieces[0] | pieces[1]]
    sizes = []
    for name, own in zip(("vocab.json", "target_vocab.json"), pieces, strict=False):
        words = ["</s>", "<unk>", *sorted(own - {"<s>", "</s>", "<unk>"}), "<pad>"]
        ids = {word: number for number, word in enumerate(words)}
        (folder / name).write_text(json.dumps(ids), encoding="utf-8")
        sizes.append(len(words))
    settings = {"source_lang": "en", "target_lang": "de", "separate_vocabs": separate}
    settings |= {"tokenizer_class": "MarianTokenizer", "model_max_length": 64}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    return sizes[0], sizes[-1]


def write_folder(folder, **changes):
    """Model and tokenizer as MarianMTModel and MarianTokenizer save them; returns both."""
    vocab_size, _ = write_tokenizer(folder)
    model = marian_model(vocab_size=vocab_size, **changes)
    model.save_pretrained(folder)
    return model, MarianTokenizer.from_pretrained(folder)
