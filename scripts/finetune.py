"""Fine-tune with Seq2SeqTrainer: scripts/finetune.py --model FOLDER --train_source FILE ...

Every field of Seq2SeqTrainingArguments is an option too, --output_dir first of all.
"""

from transformers import Seq2SeqTrainingArguments

from hf_vanilla.command_line import run
from hf_vanilla.finetuning import FinetuneOptions, finetune

if __name__ == "__main__":
    print(run(finetune, FinetuneOptions, Seq2SeqTrainingArguments))
