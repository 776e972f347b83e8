"""The one way in which commands, pages and classes such as `Translator` load by name.

No code of its folder runs, nothing is asked, no weight is left out, and whatever a damaged folder
raises becomes one line. The Auto classes and `from_pretrained` stay as in transformers.
"""

import logging
import pickle
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import get_hf_file_metadata, hf_hub_url, try_to_load_from_cache
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, OfflineModeIsEnabled
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES
from transformers.models.auto.modeling_auto import MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES
from transformers.tokenization_utils_base import TOKENIZER_CONFIG_FILE
from transformers.utils import CONFIG_NAME

from hf_vanilla.families import DEFAULT_TASK, TASKS, TaskEntry, load_part, task_entry, task_of_type

# translators that come with the package: their folders by name
DEMO_MODELS = {
    name: str(Path(__file__).with_name("text") / "demo_models" / name)
    for name in ("numbers", "help-en-de")
}
LARGEST_SIZE, MOST_LAYERS = 10**9, 10**4  # in a config
SHOWN_NAMES, SHOWN_CHARACTERS = 3, 300  # in a message


class ForeignModelError(ValueError):
    """A model of transformers that does not translate."""


def model_folder(name: str | Path) -> str:
    """The folder of a model of the package; every other name, or one of a folder here, as it is."""
    name = str(name)
    return name if Path(name).is_dir() else DEMO_MODELS.get(name, name)


def device_named(name: str | torch.device | None) -> torch.device:
    """A device by its name, such as cpu; None: a GPU if there is one.

    Raises:
        ValueError: torch does not compute there.
    """
    try:
        device = name or ("cuda" if torch.cuda.is_available() else "cpu")
        return torch.empty(0, device=device).device
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"device={str(name)!r}: {reason:.80}: give another, such as cpu") from None


def read_settings(name: str | Path) -> dict[str, Any]:
    """The content of a model's `config.json`; nothing is built from it.

    Args:
        name: folder or Hub id.

    Raises:
        ValueError: there is none, it is damaged, or a size in it is absurd.
        OSError: nothing is found under that name, or a file.
    """
    name = model_folder(name)
    parent = Path(name).parent
    if Path(name).is_file():
        raise OSError(f"{name} is a file: give the folder of a model, or its Hub id")
    if not Path(name).is_dir() and parent != Path() and parent.is_dir():
        raise FileNotFoundError(f"{name}: no such folder")
    with one_line(name, "config.json"):
        _check_hub_answers(name)
        settings, _ = PreTrainedConfig.get_config_dict(str(name))
        _check_sizes(settings)
    if not settings:
        remedy = "give one that training wrote"
        if Path(name).name.startswith("checkpoint-"):
            remedy = "give its run, or make a model of checkpoints by hf-vanilla average"
        raise ValueError(f"{name} is not a model folder (it has no config.json): {remedy}")
    return settings


def load_saved(kind: Any, name: str | Path, **options: Any) -> Any:
    """A config, tokenizer, image processor or generation config; of a model, see `load_model`.

    Args:
        kind: class with `from_pretrained`.
        name: folder or Hub id.
        **options: of `from_pretrained`.

    Raises:
        ValueError: it is damaged, or needs code of its own.
        OSError: nothing is found under that name.
    """
    name = model_folder(name)
    if issubclass(kind, PreTrainedConfig) or kind.__name__ == "AutoConfig":
        read_settings(name)
    with one_line(name, kind.__name__):
        if kind.__name__ == "AutoTokenizer":
            _check_hub_answers(name)
        return kind.from_pretrained(str(name), trust_remote_code=False, **options)


def load_model(
    kind: Any, name: str | Path, *, may_differ: tuple[str, ...] = (), **options: Any
) -> Any:
    """A model in evaluation mode, with every weight of its config and no other.

    Args:
        kind: class of the model, or an Auto class.
        name: folder or Hub id.
        may_differ: beginnings of the names of weights that are replaced, such as a head.
        **options: of `from_pretrained`.

    Raises:
        ValueError: it is damaged, needs code of its own, or has other weights than its config says.
        OSError: nothing is found under that name.
    """
    model, report = load_with_report(kind, name, **options)
    sizes = [
        f"{key} ({tuple(found)} instead of {tuple(expected)})"
        for key, found, expected in sorted(report["mismatched_keys"])
    ]
    weights = {
        "missing": sorted(report["missing_keys"]),
        "not in the model": sorted(report["unexpected_keys"]),
        "of another size": sizes,
    }
    faults = []
    for fault, keys in weights.items():
        if wrong := [key for key in keys if not key.startswith(may_differ)]:
            more = f" and {len(wrong) - SHOWN_NAMES} more" if len(wrong) > SHOWN_NAMES else ""
            faults.append(f"{fault}: {', '.join(wrong[:SHOWN_NAMES])}{more}")
    if faults:
        needed = type(model).__name__
        saved, *_ = model.config.architectures or [needed]
        remedy = (
            "save or download it again; if an older version of this class saved it, train it again"
            if saved == needed
            else f"it is a {saved}; give a {needed}"
        )
        raise ValueError(
            f"{name} has other weights than its config.json says for {needed}; "
            f"{'; '.join(faults)}: {remedy}"
        )
    return model.eval()


def load_with_report(kind: Any, name: str | Path, **options: Any) -> tuple[Any, dict[str, Any]]:
    """A model as it was saved, and what `from_pretrained` reports of its weights.

    For those who compare the weights themselves; all others call `load_model`.

    Args:
        kind: class of the model, or an Auto class.
        name: folder or Hub id.
        **options: of `from_pretrained`.

    Raises:
        ValueError: it is damaged, or needs code of its own.
        OSError: nothing is found under that name.
    """
    read_settings(name)
    transformers_log = logging.getLogger("transformers.modeling_utils")
    transformers_log.addFilter(_is_no_report)  # its table says what the caller says
    try:
        return load_saved(
            kind, name, output_loading_info=True, ignore_mismatched_sizes=True, **options
        )
    finally:
        transformers_log.removeFilter(_is_no_report)


def load_rows(name: str, *config: str | None, **options: Any) -> Any:
    """The rows of a dataset of the Hub, or of a folder that `datasets` reads.

    Args:
        name: Hub id or folder.
        *config: at most one, a configuration of the dataset.
        **options: of `datasets.load_dataset`.

    Raises:
        ValueError: the dataset is damaged, or needs code of its own.
        OSError: nothing is found under that name.
    """
    from datasets import config as of_datasets  # takes a second
    from datasets import load_dataset

    with one_line(name, "dataset"):
        if not Path(of_datasets.HF_DATASETS_CACHE, name.replace("/", "___")).exists():
            _check_hub_answers(name, repo_type="dataset")
        return load_dataset(name, *config, **options)


def task_of_model(name: str) -> str:
    """The task of a model: of one without weights by its name, else from its `model_type`.

    Args:
        name: model folder, Hub id, or a name of `built_in` of a task.

    Raises:
        ValueError: the model belongs to no task of this package.
        OSError: there is no config.
    """
    for task, entry in TASKS.items():
        if name in entry.built_in:
            return task
    model_type = read_settings(name).get("model_type")
    if (of_type := task_of_type(model_type)) is not None:
        return of_type
    known = ", ".join(kind for entry in TASKS.values() for kind in entry.model_types)
    text = f"{name} has model_type={model_type!r}; this package has tasks for {known}"
    if model_type in CONFIG_MAPPING_NAMES.keys() - MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES:
        raise ForeignModelError(f"{text}: hf-vanilla convert --help lists what becomes one of them")
    raise ValueError(text)


def task_or_default(name: str | Path | None) -> str:
    """The task of a saved model; the default one where there is no such model.

    What then loads the model reports it. Translation models that transformers knows belong to the
    default task too.

    Raises:
        ForeignModelError: it is a model of transformers that does not translate.
    """
    try:
        return DEFAULT_TASK if name is None else task_of_model(str(name))
    except ForeignModelError:
        raise
    except (OSError, ValueError):
        return DEFAULT_TASK


def load_folder(folder: Path) -> tuple[PreTrainedModel, Any]:
    """The model of a folder, and its tokenizer or image processor; None where it has none.

    Raises:
        ValueError: the folder holds no model.
        OSError: a file is missing or damaged.
    """
    entry = task_entry(task_or_default(folder))
    if entry.load:
        return load_part(entry.load)(str(folder))
    processor = load_saved(load_part(entry.processor), folder) if entry.processor else None
    return load_model(load_part(entry.auto_class), folder), processor


@contextmanager
def one_line(name: str | Path, part: str) -> Iterator[None]:
    """Name what is loaded and the reason, whatever a damaged folder or the Hub raises.

    Args:
        name: what is loaded.
        part: what of it, for the message; `"dataset"`: it is no model.

    Raises:
        ValueError: it is damaged.
        OSError: it cannot be read, or is neither a folder nor on the Hub.
    """
    try:
        yield
    except ImportError:
        raise
    except Exception as error:  # damaged files raise many different exceptions
        is_here = Path(name).is_dir()
        if not is_here and isinstance(error, OSError | HfHubHTTPError | HFValidationError):
            here = "file or folder" if part == "dataset" else "folder"
            has_own = part != "dataset" and "/" not in str(name)
            own = f"; the package has the translators {', '.join(DEMO_MODELS)}" if has_own else ""
            why = f"{(str(error) or type(error).__name__).splitlines()[0]}{own}"
            raise OSError(f"{name}: no such {here}, and not found on the Hub: {why}") from None
        if isinstance(error, FileNotFoundError):
            raise
        kind = OSError if isinstance(error, OSError) else ValueError
        raise kind(_fault(name, part, error)) from None


def _check_hub_answers(name: str | Path, repo_type: str = "model") -> None:
    """Ask the Hub once for what is not here or cached; the client asks for half a minute.

    Raises:
        ConnectionError: there is no answer.
    """
    cached = (
        try_to_load_from_cache(str(name), file, repo_type=repo_type)
        for file in (CONFIG_NAME, TOKENIZER_CONFIG_FILE)
    )
    if Path(name).is_dir() or any(isinstance(file, str) for file in cached):
        return
    try:
        get_hf_file_metadata(hf_hub_url(str(name), CONFIG_NAME, repo_type=repo_type))
    except (HfHubHTTPError, HFValidationError, OfflineModeIsEnabled):
        return  # loading the model says more
    except Exception as error:  # of httpx or of httpx2, depending on the client's version
        raise ConnectionError(f"no answer ({error})") from None


def _is_no_report(record: logging.LogRecord) -> bool:
    return "LOAD REPORT" not in record.getMessage()


def _fault(name: str | Path, part: str, error: Exception) -> str:
    text = " ".join(str(error).split())
    if "trust_remote_code" in text:
        return (
            f"{name} cannot be loaded: it needs code of its own, which could do anything on this "
            "computer: convert it, or load it in Python by transformers"
        )
    if part == "AutoTokenizer" and Path(name).is_dir() and not any(Path(name).glob("tokenizer*")):
        return f"{name} has no tokenizer: save its own there, by tokenizer.save_pretrained"
    if isinstance(error, pickle.UnpicklingError) or "weights_only" in text:
        text = "its file of weights is damaged, or contains more than weights"
    elif not isinstance(error, ValueError | OSError):
        text = f"{type(error).__name__}: {text}"
    if len(text) > SHOWN_CHARACTERS:
        text = f"{text[:SHOWN_CHARACTERS]}..."
    return f"{name} cannot be loaded ({part}): {text.rstrip('.')}: save or download it again"


def _check_sizes(settings: Mapping[str, Any], section: str = "") -> None:
    """Refuse sizes that no machine can hold, before anything is built.

    Raises:
        ValueError: a number is too large.
    """
    for key, value in settings.items():
        if isinstance(value, Mapping):
            _check_sizes(value, f"{section}{key}.")
        limit = MOST_LAYERS if "layers" in str(key) else LARGEST_SIZE
        for number in value if isinstance(value, list) else [value]:
            if isinstance(number, int) and abs(number) > limit:
                raise ValueError(f"{section}{key} is above {limit:,}")


# --- the trained model that a run starts from ----------------------------------------------------

# fields that act in training alone; a run may have its own
OF_TRAINING = frozenset(
    {
        *("dropout", "attention_dropout", "activation_dropout"),
        *("label_smoothing", "label_smoothing_type"),
        *("auxiliary_loss", "eos_coefficient", "class_cost", "bbox_cost", "giou_cost"),
        *("bbox_loss_coefficient", "giou_loss_coefficient"),
    }
)
# beside them: a recipe's `vocab_size` is for a tokenizer that is still to be trained; images may
# have another size, for which positions are interpolated; a new head has no pooler
MAY_DIFFER = OF_TRAINING | {"vocab_size", "image_size", "has_pooler"}


def initial_config(
    name: str, entry: TaskEntry, section: Mapping[str, Any], changes: Mapping[str, Any]
) -> Any:
    """The config of a trained model with fields of a recipe.

    Args:
        name: folder or Hub id.
        entry: of the recipe's task.
        section: fields of the recipe's section `model`.
        changes: fields that follow from the data.

    Raises:
        ValueError: it is damaged, a model of another task, or another one than the section says.
        OSError: there is no such model.
    """
    if name in entry.built_in:
        raise ValueError(f"initial_model={name!r} has no weights: give a model folder")
    if (saved := read_settings(name).get("model_type")) not in entry.model_types:
        task_of_model(name)  # says more of a model that belongs to none
        raise ValueError(
            f"initial_model={name!r} is a model of type {saved!r}, and this task trains "
            f"{', '.join(entry.model_types)}: leave task and recipe out, or give another model"
        )
    kind = load_part(entry.config)
    config = load_saved(kind, name)
    check_section(name, config, section)
    return kind(**{**config.to_dict(), **section, **changes})


def check_section(name: str, saved: Any, section: Mapping[str, Any]) -> None:
    """Refuse a recipe whose section `model` describes another model than the initial one.

    Args:
        name: of the initial model.
        saved: its config.
        section: fields of the recipe.

    Raises:
        ValueError: a field differs; the message names it with both values.
    """
    wrong = []
    for field in (name for name in section if name not in MAY_DIFFER):
        there, here = getattr(saved, field), section[field]
        if isinstance(there, PreTrainedConfig):  # in a section, its keys and values
            both = there.to_dict(), getattr(type(saved)(**{field: here}), field).to_dict()
            names = [n for n in both[1] if n != "dtype" and both[0].get(n) != both[1][n]]
            there, here = ({n: values.get(n) for n in names} for values in both)
        if there != here:
            wrong.append(f"{field} is {there} there and {here} here")
    if wrong:
        raise ValueError(
            f"initial_model={name!r} has another config: {'; '.join(wrong)}: set the section model "
            "to the values there, or leave them out"
        )
