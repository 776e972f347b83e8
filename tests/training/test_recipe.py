"""One YAML file and a command line: the later value wins, and no misspelled key is swallowed."""

import sys
from dataclasses import dataclass, fields, replace

import pytest
import yaml
from huggingface_hub.errors import StrictDataclassError

from hf_vanilla import families
from hf_vanilla.loading import task_of_model
from hf_vanilla.options import option
from hf_vanilla.text.options import TranslationDataOptions
from hf_vanilla.training.options import Adam, TrainRecipe
from hf_vanilla.training.recipe import Recipe, read_recipe

FILES = {
    "train_source": "a.en",
    "train_target": "a.de",
    "validation_source": "b.en",
    "validation_target": "b.de",
}

# an option more or less is a decision: edit this list with it
NAMES = """
    output_dir model_license initial_model
    max_steps learning_rate learning_rate_of schedule warmup_steps optimizer weight_decay
    adam max_grad_norm average_checkpoints
    average_best best_by patience
    seed mixed_precision compile gradient_checkpointing use_cpu dataloader_workers
    eval_steps save_steps save_total_limit logging_steps trackers
"""
TRANSLATION_NAMES = """
    dataset dataset_config source_column target_column
    train_source train_target prepared mixture validation_source validation_target
    source_language target_language tokenizer max_length
    max_length_ratio preprocessing_workers
    tokens_per_step tokens_per_batch length_buckets rdrop_alpha simcut_alpha bpe_dropout
    eval_sentences bleu_tokenize
"""
OPTIONS = [*NAMES.split(), *TRANSLATION_NAMES.split()]
FIELDS = [*fields(TrainRecipe), *fields(TranslationDataOptions)]


def make(**options):
    """A recipe of options of either kind."""
    own = {declared.name for declared in fields(TrainRecipe)}
    return Recipe(
        train=TrainRecipe(**{n: v for n, v in options.items() if n in own}),
        data=TranslationDataOptions(**{n: v for n, v in options.items() if n not in own}),
        model={},
        decoding={},
    )


@pytest.fixture
def write(tmp_path):
    def to_file(text):
        path = tmp_path / "recipe.yaml"
        path.write_text(text, encoding="utf-8")
        return ["--recipe", str(path)]

    return to_file


# --- the list of options -----------------------------------------------------------------------


def test_the_options_are_those_of_the_list():
    assert [option.name for option in FIELDS] == OPTIONS


def test_every_option_says_what_it_is():
    assert all(declared.metadata["help"] for declared in FIELDS)


def test_the_defaults_train_the_papers_way():
    recipe = read_recipe([])
    assert recipe.train.adam == Adam(beta1=0.9, beta2=0.98, epsilon=1e-9)
    assert recipe.train.warmup_steps == 4000
    assert (recipe.data.tokens_per_step, recipe.train.max_steps) == (25_000, 100_000)
    assert recipe.best_by == "nll"
    assert recipe.train.learning_rate is None
    assert (recipe.model, recipe.decoding) == ({}, {})
    assert recipe.config().d_model == 512
    assert recipe.generation_config(recipe.config()).num_beams == 4


# --- what wins ---------------------------------------------------------------------------------


def test_an_option_wins_over_the_file_and_the_file_over_the_default(write):
    recipe = read_recipe([*write("max_steps: 30\nseed: 5\n"), "--max_steps", "70"])
    assert (recipe.train.max_steps, recipe.train.seed) == (70, 5)
    assert recipe.train.warmup_steps == TrainRecipe().warmup_steps


@pytest.mark.parametrize(
    "arguments",
    [["--model.d_model", "256"], ["--model.d_model=256"]],
    ids=["two words", "one word"],
)
def test_a_section_is_set_from_the_command_line(write, arguments):
    recipe = read_recipe([*write("model:\n  d_model: 64\n  dropout: 0.3\n"), *arguments])
    assert recipe.model == {"d_model": 256, "dropout": 0.3}
    assert recipe.config().d_model == 256


@pytest.mark.parametrize(
    "arguments",
    [["--decoding.num_beams", "5"], ["--decoding.num_beams=5"]],
    ids=["two words", "one word"],
)
def test_decoding_is_set_from_the_command_line(write, arguments):
    recipe = read_recipe([*write("decoding:\n  num_beams: 3\n"), *arguments])
    decoding = recipe.generation_config(recipe.config())
    assert decoding.num_beams == 5
    assert decoding.length_penalty_form == "gnmt"  # the rest is the paper's


def test_a_section_needs_no_file():
    assert read_recipe(["--model.encoder_layers", "3"]).config().encoder_layers == 3


def test_the_last_of_several_values_wins():
    recipe = read_recipe(["--max_steps", "3", "--max_steps", "5"])
    assert recipe.train.max_steps == 5
    recipe = read_recipe(["--model.d_model", "64", "--model.d_model=96"])
    assert recipe.model == {"d_model": 96}


@pytest.mark.parametrize("style", ["1e-4", "1.0e-4", "0.0001", "1E-4"])
def test_a_rate_may_be_written_in_any_style(write, style):
    assert read_recipe(write(f"learning_rate: {style}\n")).train.learning_rate == 1e-4
    assert read_recipe(["--learning_rate", style]).train.learning_rate == 1e-4


@pytest.mark.parametrize("style", ["1e-4", "1.0e-4", "0.0001", "1E-4"])
def test_a_rate_of_the_model_may_be_written_in_any_style(write, style):
    assert read_recipe(write(f"model: {{dropout: {style}}}\n")).config().dropout == 1e-4
    assert read_recipe(["--model.layer_norm_eps", style]).config().layer_norm_eps == 1e-4


def test_a_switch_is_read_from_both(write):
    assert read_recipe(write("use_cpu: true\n")).train.use_cpu is True
    assert read_recipe([*write("use_cpu: true\n"), "--use_cpu", "False"]).train.use_cpu is False
    assert read_recipe(["--use_cpu", "True"]).train.use_cpu is True


def test_a_precision_of_no_is_not_taken_for_false(write):
    assert read_recipe(write("mixed_precision: no\n")).train.mixed_precision == "no"


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("trackers: [tensorboard, wandb]\n", ["tensorboard", "wandb"]),
        ("trackers: tensorboard,wandb\n", ["tensorboard", "wandb"]),
        ("trackers: []\n", []),
        ("trackers: none\n", []),
    ],
)
def test_trackers_are_a_list_or_names_with_commas(write, text, names):
    assert read_recipe(write(text)).train.trackers == names


def test_an_empty_value_leaves_the_default(write):
    recipe = read_recipe(write("learning_rate:\nmax_steps: 5\nmodel:\ndecoding:\n"))
    assert recipe.train.learning_rate is None
    assert (recipe.model, recipe.decoding) == ({}, {})


# --- tasks ---------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class OtherData:
    """Data options of another task."""

    image_size: int = option(8, "pixels", at_least=1)


@pytest.fixture
def other_task(monkeypatch):
    entry = replace(families.TASKS["translation"], data=f"{__name__}:OtherData")
    monkeypatch.setitem(families.TASKS, "other", entry)
    monkeypatch.setitem(sys.modules, __name__, sys.modules[OtherData.__module__])


def test_an_option_of_another_task_is_refused_by_naming_that_task(other_task, write):
    told = "image_size is an option of task other, and this recipe's task is translation"
    for arguments in (["--image_size", "9"], write("image_size: 9\n")):
        with pytest.raises(ValueError, match=told):
            read_recipe(arguments)
    with pytest.raises(ValueError, match="tokens_per_step is an option of task translation"):
        read_recipe(["--task", "other", "--tokens_per_step", "9"])


def test_a_field_of_another_tasks_model_is_refused_by_naming_that_task(write):
    told = "model.image_size is of task image_classification, and this recipe's task is "
    told += "translation: give --task image_classification, or leave it out"
    for arguments in (["--model.image_size", "32"], write("model:\n  image_size: 32\n")):
        with pytest.raises(ValueError, match=told):
            read_recipe(arguments)
    told = "model.num_modes is of task trajectories or joint_trajectories or scene_trajectories"
    with pytest.raises(ValueError, match=told):
        read_recipe(["--task", "image_classification", "--model.num_modes", "4"])


def test_help_shows_the_options_of_the_chosen_task_alone(other_task, capsys):
    with pytest.raises(SystemExit):
        read_recipe(["--task", "other", "--help"])
    text = capsys.readouterr().out
    assert "--image_size" in text
    assert "--tokens_per_step" not in text
    assert "options of every task:" in text


def test_an_unknown_task_is_refused_with_those_there_are():
    with pytest.raises(ValueError, match="task='translat': choose one of translation"):
        read_recipe(["--task", "translat"])


def test_the_task_of_a_model_is_read_from_its_config(trained_run, tmp_path):
    assert task_of_model(str(trained_run)) == "translation"
    (tmp_path / "config.json").write_text('{"model_type": "marian"}')
    with pytest.raises(ValueError, match="model_type='marian'; this package has tasks for vanilla"):
        task_of_model(str(tmp_path))


# --- a shorter warmup ----------------------------------------------------------------------------


def test_a_shorter_warmup_lowers_the_files_rate_in_proportion_and_says_so(write, caplog):
    text = "learning_rate: 0.005\nwarmup_steps: 400\n"
    for _ in range(2):  # as a sweep does, which says it once
        recipe = read_recipe([*write(text), "--warmup_steps", "60"])
        assert recipe.train.learning_rate == pytest.approx(0.00075)
    assert caplog.text.count("learning_rate is 0.00075 instead of the recipe's 0.005") == 1


def test_a_shorter_warmup_lowers_the_rates_of_parts_of_the_model_too(write):
    text = "learning_rate: 0.005\nwarmup_steps: 400\nlearning_rate_of: {model.encoder: 0.001}\n"
    arguments = [*write(text), "--warmup_steps", "100"]
    recipe = read_recipe(arguments)
    assert recipe.train.learning_rate_of == {"model.encoder": 0.00025}
    recipe = read_recipe([*arguments, "--learning_rate_of", "model.encoder=0.002"])
    assert recipe.train.learning_rate_of == {"model.encoder": 0.002}
    assert recipe.train.learning_rate == 0.00125


@pytest.mark.parametrize(
    "arguments",
    [["--warmup_steps=800"], ["--max_steps=9"], ["--warmup_steps=60", "--learning_rate=0.005"]],
    ids=str,
)
def test_a_rate_stays_where_the_warmup_is_not_shorter_or_the_rate_is_chosen(write, arguments):
    recipe = read_recipe([*write("learning_rate: 0.005\nwarmup_steps: 400\n"), *arguments])
    assert recipe.train.learning_rate == 0.005


# --- data --------------------------------------------------------------------------------------


def test_files_on_the_command_line_take_the_place_of_a_set(write):
    chosen = [f"--{name}={value}" for name, value in FILES.items()]
    recipe = read_recipe([*write("dataset: wmt14\ndataset_config: de-en\n"), *chosen]).data
    assert (recipe.dataset, recipe.dataset_config) == (None, None)
    assert recipe.train_files == ["a.en", "a.de"]
    assert recipe.validation_files == ["b.en", "b.de"]


def test_a_set_on_the_command_line_takes_the_place_of_files(write):
    recipe = read_recipe([*write(yaml.safe_dump(FILES)), "--dataset", "numbers"]).data
    assert recipe.dataset == "numbers"
    assert recipe.train_files == recipe.validation_files == []


def test_training_files_on_the_command_line_do_not_keep_the_files_validation(write, caplog):
    chosen = ["--train_source", "c.en", "--train_target", "c.de"]
    recipe = read_recipe([*write(yaml.safe_dump(FILES)), *chosen]).data
    assert recipe.train_files == ["c.en", "c.de"]
    assert recipe.validation_files == []
    assert "left out: validation_source, validation_target" in caplog.text


def test_other_validation_files_keep_the_files_training_data(write):
    chosen = ["--validation_source", "c.en", "--validation_target", "c.de"]
    recipe = read_recipe([*write(yaml.safe_dump(FILES)), *chosen]).data
    assert recipe.train_files == ["a.en", "a.de"]
    assert recipe.validation_files == ["c.en", "c.de"]


def test_data_named_with_dashes_takes_the_place_of_the_files_too(write):
    recipe = read_recipe(
        [*write("dataset: wmt14\n"), "--train-source", "a.en", "--train-target=a.de"]
    )
    assert recipe.data.dataset is None
    assert recipe.data.train_files == ["a.en", "a.de"]


def test_a_start_named_with_dashes_decides_the_task_too():
    for name in ("--initial_model", "--initial-model"):
        assert read_recipe([name, "constant_velocity"]).task == "trajectories"


def test_another_option_leaves_the_files_data_alone(write):
    recipe = read_recipe([*write(yaml.safe_dump(FILES)), "--seed", "3"]).data
    assert {name: getattr(recipe, name) for name in FILES} == FILES


# --- misspelled --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("max_step: 5\n", "recipe: unknown key 'max_step'; did you mean 'max_steps'"),
        ("model:\n  d_modle: 5\n", "model: unknown key 'd_modle'; did you mean 'd_model'"),
        ("decoding:\n  num_beam: 5\n", "decoding: unknown key 'num_beam'; did you mean"),
        ("zzz: 5\n", "recipe: unknown key 'zzz'; known: adam"),
        ("vocab_size: 5\n", "recipe: unknown key 'vocab_size'; did you mean 'model.vocab_size'"),
        ("model:\n  num_beams: 5\n", "model: unknown key 'num_beams'"),
        ("model:\n  pad_token_id: 3\n", "model.pad_token_id=3: it follows from the data"),
    ],
    ids=[
        "recipe",
        "model",
        "decoding",
        "unlike any",
        "of model",
        "another section's",
        "of the data",
    ],
)
def test_a_misspelled_key_is_named_with_the_right_one(write, text, message):
    with pytest.raises(ValueError, match=message):
        read_recipe(write(text))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model.d_modle", "5"], "did you mean 'd_model'"),
        (["--decoding.num_beam=5"], "did you mean 'num_beams'"),
        (["--max_step", "5"], "max_step.*did you mean .*max_steps"),
    ],
    ids=["model", "decoding", "recipe"],
)
def test_a_misspelled_option_is_named_with_the_right_one(arguments, message):
    with pytest.raises(ValueError, match=message):
        read_recipe(arguments)


@pytest.mark.parametrize("option", ["--recipe", "--model.d_model"])
def test_an_option_without_its_value_is_named(option):
    with pytest.raises(ValueError, match=f"{option} needs a value"):
        read_recipe([option])


# --- wrong values ------------------------------------------------------------------------------


def test_a_value_of_the_wrong_kind_is_refused_by_name(write):
    cases = [
        ("max_steps: many\n", "max_steps.*many"),
        ("max_steps: [3, 5]\n", "max_steps"),
        ("learning_rate: fast\n", "learning_rate.*fast"),
        ("use_cpu: perhaps\n", "use_cpu|[Tt]ruthy"),
        ("model: 5\n", "model must hold keys and values, not 5"),
        ("decoding: [num_beams]\n", "decoding must hold keys and values"),
        ("model: 5\nmodel.d_model: 16\n", "model must hold keys and values, not 5"),
        ("adam: 5\nadam_beta1: 0.9\n", "adam must hold keys and values, not 5"),
        ("task: [translation]\n", r"task is \['translation'\]: give a text"),
        ("- max_steps\n", "must hold keys and values"),
        ("", "must hold keys and values"),
        ("a: [\n", "is not YAML"),
        ("learning_rate: .inf\n", "learning_rate=inf: give a finite number"),
        (f"max_steps: {10**400}\n", "max_steps=1000.*000: give a finite number"),
        (f"max_steps: {10**20}\n", "max_steps=1000.*000: give a finite number"),
        ("max_grad_norm: .nan\n", "max_grad_norm=nan: give a finite number"),
        ("model: {dropout: .nan}\n", "model.dropout=nan: give a finite number"),
        ("seed: 3\nmax_steps: 5\nseed: 7\n", r"'seed' has two values \(the second in line 3\)"),
        ("model: {d_model: 8, d_model: 9}\n", "'d_model' has two values"),
        ("decoding: {length_penalty_form: wu}\n", "'wu': choose one of gnmt, power"),
    ]
    for text, message in cases:
        with pytest.raises(ValueError, match=message):
            read_recipe(write(text))


@pytest.mark.parametrize("text", ["model: {d_model: wide}\n", "model: {d_model: 7}\n"])
def test_a_model_that_cannot_be_built_is_refused_while_reading(write, text):
    with pytest.raises(StrictDataclassError, match="d_model"):
        read_recipe(write(text))


@pytest.mark.parametrize("beams", [0, -1, 2.5])
def test_a_number_of_beams_that_cannot_be_is_refused_while_reading(beams):
    with pytest.raises(ValueError, match="num_beams"):
        read_recipe(["--decoding.num_beams", str(beams)])


def test_an_option_that_is_no_yaml_is_refused_as_a_mistake_of_the_user():
    with pytest.raises(ValueError, match="d_model"):
        read_recipe(["--model.d_model", "["])


def test_a_retired_option_is_dropped_where_it_is_off_and_refused_by_its_replacement(write):
    written = write("streaming: false\ncomet: null\nwindow_pairs: 100000\nmax_steps: 7")
    assert read_recipe([*written, "--streaming", "false"]).train.max_steps == 7
    message = "streaming=True: there is no such option; use hf-vanilla prepare --streaming"
    for arguments in (write("streaming: true"), ["--streaming", "true"], ["--streaming=True"]):
        with pytest.raises(ValueError, match=message):
            read_recipe(arguments)
    with pytest.raises(ValueError, match="the same command resumes a stopped run"):
        read_recipe(["--resume_from_checkpoint", "True"])
    with pytest.raises(ValueError, match="comet='X/da': there is no such option; score the"):
        read_recipe(["--comet", "X/da"])


def test_a_missing_recipe_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"nowhere\.yaml"):
        read_recipe(["--recipe", str(tmp_path / "nowhere.yaml")])


COUNTS = """
    max_length max_steps tokens_per_step tokens_per_batch warmup_steps average_checkpoints
    eval_steps save_steps save_total_limit logging_steps preprocessing_workers
"""


def test_a_count_below_one_is_refused():
    for name in COUNTS.split():
        for value in [0, -3]:
            with pytest.raises(ValueError, match=f"{name}={value}: give a positive number"):
                make(**{name: value})


def test_an_empty_initial_model_is_refused(write):
    for text, more in (("initial_model: ''\n", []), ("seed: 1\n", ["--initial_model", ""])):
        arguments = [*write(text), *more]
        with pytest.raises(ValueError, match="initial_model is empty: give a folder"):
            read_recipe(arguments)


def test_values_that_do_not_fit_are_refused_with_the_remedy():
    cases = [
        ({"eval_sentences": -1}, "eval_sentences=-1: give 0 or more"),
        ({"seed": -1}, "seed=-1: give 0 or more"),
        ({"tokens_per_batch": 255}, "255 is smaller than max_length=256: a batch must hold"),
        ({"save_total_limit": 3, "average_checkpoints": 5}, "3 is smaller than average_check"),
        ({"learning_rate": 0.0}, "learning_rate=0.0: give a positive"),
        ({"learning_rate": -1e-3}, "learning_rate=-0.001"),
        ({"max_length_ratio": 0.9}, "max_length_ratio=0.9: give a positive number"),
        ({"max_grad_norm": -1.0}, "max_grad_norm=-1.0: give 0 or more"),
        ({"mixed_precision": "half"}, "mixed_precision='half': choose one of no, bf16, fp16"),
        ({"best_by": "loss"}, "best_by='loss': choose one of nll, bleu, chrf, exact"),
        ({"trackers": ["tensorbord"]}, "trackers='tensorbord': choose one of aim, tensorboard"),
        ({"patience": -1}, "patience=-1: give 0 or more"),
        (
            {"patience": 3, "best_by": "bleu", "eval_sentences": 0},
            "best_by='bleu' needs translations: set eval_sentences",
        ),
        (
            {"average_best": True, "save_steps": 500, "eval_steps": 200},
            "save_steps=500 must be a multiple of eval_steps=200",
        ),
        (
            {"train_source": "a", "train_target": "b", "patience": 3},
            "average_best and patience need validation files",
        ),
        ({"train_source": "a"}, "train_source is given, but not train_target: give both"),
        ({"validation_target": "b"}, "validation_target is given, but not validation_source"),
        ({"source_language": "en"}, "source_language is given, but not target_language"),
        ({**FILES, "dataset": "x"}, "dataset='x' and train_source='a.en': leave one of them out"),
        (
            {"validation_source": "b", "validation_target": "c"},
            "validation_source='b' needs training files beside it",
        ),
    ]
    for options, message in cases:
        with pytest.raises(ValueError, match=message):
            make(**options)


# --- there and back ----------------------------------------------------------------------------


def round_trip(recipe, folder):
    (folder / "again.yaml").write_text(recipe.to_yaml(), encoding="utf-8")
    return read_recipe(["--recipe", str(folder / "again.yaml")])


def test_a_recipe_comes_back_the_same_from_its_yaml(tmp_path):
    recipe = Recipe(
        data=TranslationDataOptions(
            **FILES,
            source_language="no",  # which YAML without quotes takes for a refusal
            target_language="de",
        ),
        train=TrainRecipe(
            learning_rate=1e-5,
            adam=Adam(epsilon=1e-8),
            mixed_precision="no",
            use_cpu=True,
            output_dir="runs/größer: 2",
        ),
        model={"d_model": 96, "dropout": 0.25, "scale_embedding": False},
        decoding={"num_beams": 7, "early_stopping": True},
    )
    assert round_trip(recipe, tmp_path) == recipe


def test_defaults_are_left_out_of_the_yaml():
    recipe = make(max_steps=7)
    assert yaml.safe_load(recipe.to_yaml()) == {"max_steps": 7}


# --- any options -------------------------------------------------------------------------------


def test_numbers_of_adam_are_one_section_also_under_their_earlier_names(write):
    for text, arguments in {
        "adam: {epsilon: 1e-8}\n": ["--adam.beta2", "0.9"],
        "adam_epsilon: 1e-8\nadam_beta2: 0.9\n": [],
        "adam_epsilon: 1e-7\n": ["--adam", "{beta2: 0.9, epsilon: 1e-8}"],
    }.items():
        recipe = read_recipe([*write(text), *arguments])
        assert recipe.train.adam == Adam(beta1=0.9, beta2=0.9, epsilon=1e-8)
    for arguments, message in {
        ("--adam.beta1", "1.5"): r"adam\.beta1=1\.5: give a number in \[0, 1\)",
        ("--adam.beta2", "x"): "adam.beta2 is 'x': give a number",
        ("--adam.epsilon", "0"): "adam.epsilon=0: give a positive number",
        ("--adam.bta1", "0"): "adam: unknown key 'bta1'; did you mean 'beta1'",
        ("--adam", "5"): "adam is 5: give keys and values",
        ("--adam_beta2", "0.9"): "did you mean --adam.beta2",
    }.items():
        with pytest.raises(ValueError, match=message):
            read_recipe(arguments)


def test_help_lists_every_option_and_tells_of_recipe_files(capsys):
    with pytest.raises(SystemExit) as caught:
        read_recipe(["--help"])
    assert caught.value.code == 0
    text = capsys.readouterr().out
    assert all(f"--{name}" in text for name in OPTIONS)
    assert "--recipe" in text
    assert "(default: None)" not in text
    assert "(default: 4000)" in " ".join(text.split())


def test_reading_takes_its_arguments_and_not_those_of_the_process(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["x", "--max_steps", "3"])
    assert read_recipe([]).train.max_steps == 100_000
