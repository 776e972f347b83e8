"""Fine-tune with Seq2SeqTrainer: scripts/finetune.py --model FOLDER --train_source FILE ...

Every field of Seq2SeqTrainingArguments is an option too, --output_dir first of all.
"""

from hf_vanilla.commands import run_command

if __name__ == "__main__":
    run_command("finetune")
