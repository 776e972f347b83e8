"""Fine-tune with Seq2SeqTrainer: scripts/finetune.py --model FOLDER --train_source FILE ...

Every field of Seq2SeqTrainingArguments is an option too, --output_dir first of all.
"""

import sys

from hf_vanilla_command import main

if __name__ == "__main__":
    sys.exit(main("finetune"))
