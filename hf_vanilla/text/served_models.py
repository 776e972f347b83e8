"""The models behind the service and its page, by name.

While transformers loads a model it changes torch's defaults for all threads, and what another
thread computes or loads meanwhile goes wrong: one thread at a time may use them.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hf_vanilla.cpus import return_freed_memory
from hf_vanilla.hub.card import public_name
from hf_vanilla.models.packing_vanilla import pack

from .alignments import Aligner, saved_head
from .decoding import fragment_ids
from .loading import load_translator

MAX_MESSAGE = 400  # characters of an error


@dataclass(frozen=True)
class ServedModel:
    """A model that is packed for decoding.

    Attributes:
        name: folder or Hub id.
        model: in evaluation mode.
        tokenizer: its tokenizer.
        description: its size, layers and heads, in one line.
        fragments: as `fragment_ids` of the tokenizer.
    """

    name: str
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    description: str
    fragments: frozenset[int]

    @cached_property
    def aligner(self) -> Aligner:
        """What aligns sentences with translations of the model.

        Raises:
            ValueError: the model cannot align.
        """
        with errors_of(self.name):
            return Aligner(self.model, self.tokenizer, saved_head(self.name))


def served_model(name: str, dtype: str | None = None) -> ServedModel:
    """Load a model.

    Args:
        name: folder or Hub id.
        dtype: its numbers, as for `Translator`.

    Raises:
        ValueError: no name is given, or the model cannot be used.
    """
    if not name.strip():
        raise ValueError("No model is named: give a model folder or a Hub id.")
    with errors_of(name, "This model cannot be used."):
        model, tokenizer = load_translator(name, dtype=dtype)
        config = model.config
        description = f"{model.num_parameters() / 1e6:.1f} million parameters"
        if hasattr(config, "encoder_layers"):  # T5 has other names for its layers
            description += (
                f", {config.encoder_layers} + {config.decoder_layers} layers, "
                f"{config.encoder_attention_heads} + {config.decoder_attention_heads} heads"
            )
        pack(model)
        return_freed_memory()
        return ServedModel(name, model, tokenizer, description, fragment_ids(tokenizer))


@contextmanager
def errors_of(name: str, what: str = "") -> Iterator[None]:
    """Report any error of a model, which may be anyone's, as a ValueError of one short line."""
    try:
        yield
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        if len(reason) > MAX_MESSAGE:
            reason = f"{reason[:MAX_MESSAGE]}…"
        reason = reason.replace(name, public_name(name))
        what = what or f"{public_name(name)} failed at this text:"
        raise ValueError(f"{what} {reason}") from error
