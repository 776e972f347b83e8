"""What a user writes around any encoder-decoder: train, save, load, translate, push, pull.

    python user_program.py MODULE CONFIG_CLASS MODEL_CLASS TOKENIZER_FOLDER OUTPUT_FOLDER REPO_ID

Nothing here knows which model it is: the names of the classes are all that changes.
"""

import json
import sys
from importlib import import_module
from itertools import product
from pathlib import Path

import torch
from transformers import (
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    DataCollatorForSeq2Seq,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
)

module, config_class, model_class, tokenizer_folder, output, repo_id = sys.argv[1:]
library, folder = import_module(module), Path(output)
torch.set_num_threads(1)
torch.manual_seed(17)

tokenizer = AutoTokenizer.from_pretrained(tokenizer_folder)
sources = [" ".join(words) for words in product(["one", "two", "three"], repeat=4)]
targets = [source.upper() for source in sources]
encoded = tokenizer(sources, text_target=targets)
rows = [dict(zip(encoded, row, strict=True)) for row in zip(*encoded.values(), strict=True)]

config = getattr(library, config_class)(
    vocab_size=len(tokenizer), d_model=16, max_position_embeddings=64, dropout=0.0,
    encoder_layers=1, encoder_attention_heads=2, encoder_ffn_dim=32,
    decoder_layers=1, decoder_attention_heads=2, decoder_ffn_dim=24,
    pad_token_id=tokenizer.pad_token_id, eos_token_id=tokenizer.eos_token_id,
    decoder_start_token_id=tokenizer.pad_token_id,
)  # fmt: skip
model = getattr(library, model_class)(config)
trainer = Seq2SeqTrainer(
    model=model,
    args=Seq2SeqTrainingArguments(
        str(folder / "run"), max_steps=20, learning_rate=1e-2, per_device_train_batch_size=24,
        per_device_eval_batch_size=24, eval_strategy="steps", eval_steps=20,
        predict_with_generate=True, generation_max_length=12, save_strategy="no",
        use_cpu=True, logging_steps=1, report_to="none", disable_tqdm=True,
    ),
    train_dataset=rows,
    eval_dataset=rows[:5],
    data_collator=DataCollatorForSeq2Seq(tokenizer, model=model),
    processing_class=tokenizer,
)  # fmt: skip
trainer.train()
trainer.save_model(folder / "saved")


def translations(place):
    """From a folder or from the Hub, all the same."""
    loaded = AutoModelForSeq2SeqLM.from_pretrained(place)
    its_tokenizer = AutoTokenizer.from_pretrained(place)
    batch = its_tokenizer(sources[:3], padding=True, return_tensors="pt")
    found = loaded.generate(**batch, num_beams=3, max_new_tokens=12)
    return its_tokenizer.batch_decode(found, skip_special_tokens=True), type(loaded).__name__


from_folder, name = translations(folder / "saved")
model.push_to_hub(repo_id)
tokenizer.push_to_hub(repo_id)
from_hub, _ = translations(repo_id)
losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
found = {"class": name, "losses": losses, "from_folder": from_folder, "from_hub": from_hub}
(folder / "found.json").write_text(json.dumps(found), encoding="utf-8")
