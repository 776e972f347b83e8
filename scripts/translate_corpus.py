"""Translate any number of lines: scripts/translate_corpus.py --model M --input IN --output OUT.

The same command goes on where a run stopped. Several workers and clusters need Ray.
"""

from hf_vanilla.command_line import run
from hf_vanilla.corpus_translation import CorpusOptions, translate_corpus

if __name__ == "__main__":
    print(run(translate_corpus, CorpusOptions))
