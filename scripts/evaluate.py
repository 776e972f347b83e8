"""Score a model: scripts/evaluate.py --model FOLDER --source FILE --reference FILE."""

from hf_vanilla.command_line import run
from hf_vanilla.evaluation import EvaluateOptions, evaluate_files

if __name__ == "__main__":
    print(run(evaluate_files, EvaluateOptions))
