"""Learn a vocabulary: scripts/train_tokenizer.py --files A.en A.de --output FOLDER."""

from hf_vanilla.command_line import run
from hf_vanilla.tokenizer_training import TrainTokenizerOptions, train_tokenizer_on_files

if __name__ == "__main__":
    print(run(train_tokenizer_on_files, TrainTokenizerOptions))
