# Copyright 2026 The hf_vanilla authors. SPDX-License-Identifier: Apache-2.0
"""The translation pipeline, which transformers 5 no longer has.

Shapes: B batch, N `num_return_sequences`, T target.
"""

from collections.abc import Iterator, Sequence, Sized
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig, GenerationMixin
from transformers.pipelines.base import Pipeline

from .generation_vanilla import merged_settings, penalty_of, prompt_length, returned_scores

# written to the config of a saved model, for `pipeline()`
CUSTOM_PIPELINES = {
    "translation": {
        "impl": "pipeline_vanilla.VanillaTranslationPipeline",
        "pt": ["AutoModelForSeq2SeqLM"],
    }
}


class VanillaTranslationPipeline(Pipeline):
    """Sentences to translations, with the results of transformers 4's `TranslationPipeline`.

    A text gives a list with one dict per returned sequence; a list of texts gives one dict for
    each, or a list of dicts where `num_return_sequences` is above 1; a generator or a torch
    `Dataset` such as `KeyDataset` is read as it is translated, and gives a list of dicts for each
    text. Results come in the order of the texts. A blank text translates to an empty one.

    Args:
        model: one that translates; it is put into evaluation mode.
        tokenizer: its tokenizer.
        **kwargs: those of every pipeline, such as `device` and `batch_size` (1: each text alone;
            results do not depend on it beyond rounding), and defaults for those of a call:

            - `return_text`: give `"translation_text"`; on unless `return_tensors` is.
            - `return_tensors`: give `"translation_token_ids"`, int64 `(T,)` from the start token
              to the end token; empty for a blank text.
            - `return_scores`: give `"score"` too: the log-probability in nats divided by the length
              penalty, as beam search ranks by it; of a sampled sequence, that of the model itself,
              without temperature and the like. None for a blank text.
            - `truncation`: True cuts a text at the tokenizer's `model_max_length` tokens. By
              default nothing is cut.
            - `clean_up_tokenization_spaces`: passed on to the tokenizer's `decode`.
            - anything else, such as `num_beams`: passed on to `model.generate`.

    Raises:
        ValueError: there is no tokenizer, the model does not translate, or what a call gets is not
            text.

    Examples:
        >>> from hf_vanilla import VanillaConfig, VanillaForConditionalGeneration, train_tokenizer
        >>> tokenizer = train_tokenizer(["ein Haus", "a house"], vocab_size=270)
        >>> model = VanillaForConditionalGeneration(
        ...     VanillaConfig(vocab_size=270, d_model=16, encoder_layers=1, decoder_layers=1))
        >>> translator = VanillaTranslationPipeline(model, tokenizer, max_new_tokens=3)
        >>> len(translator(["a house", "ein Haus"], batch_size=2))
        2
    """

    _load_tokenizer = True
    _load_processor = False
    _load_image_processor = False
    _load_video_processor = False
    _load_feature_extractor = False

    def __init__(self, model: GenerationMixin, tokenizer: Any = None, **kwargs: Any) -> None:
        config = getattr(model, "config", None)
        if not getattr(config, "is_encoder_decoder", False) or not model.can_generate():
            raise ValueError(
                f"a {type(model).__name__} does not translate: give a loaded model for "
                "sequence-to-sequence, such as VanillaForConditionalGeneration"
            )
        if tokenizer is None:
            raise ValueError("a translation pipeline needs a tokenizer: add tokenizer=...")
        super().__init__(model=model.eval(), tokenizer=tokenizer, **kwargs)

    def _sanitize_parameters(
        self,
        return_tensors: bool | None = None,
        return_text: bool | None = None,
        return_scores: bool | None = None,
        clean_up_tokenization_spaces: bool | None = None,
        truncation: bool | None = None,
        **generate_kwargs: Any,
    ) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        for name in {"num_beams", "num_return_sequences"} & generate_kwargs.keys():
            if generate_kwargs[name] < 1:
                raise ValueError(f"{name}={generate_kwargs[name]}: give a positive number")
        before = {} if truncation is None else {"truncation": truncation}
        after = {
            "return_tensors": return_tensors,
            "return_text": return_text,
            "clean_up_tokenization_spaces": clean_up_tokenization_spaces,
        }
        after = {name: value for name, value in after.items() if value is not None}
        options = {**getattr(self, "_postprocess_params", {}), **after}
        if options.get("return_text") is False and not options.get("return_tensors"):
            raise ValueError("return_text=False: add return_tensors=True, or nothing is returned")
        scores = {} if return_scores is None else {"return_scores": return_scores}
        return before, {**generate_kwargs, **scores}, after

    def __call__(self, inputs: Any, **kwargs: Any) -> Any:
        """Translate a text, a list of texts, or what a generator or dataset gives."""
        if not isinstance(inputs, str | bytes) and isinstance(inputs, Sequence):
            inputs = list(inputs)  # a tuple, or a column of a dataset
        elif isinstance(inputs, Iterator):
            inputs = (text for text in inputs)  # transformers streams from generators only
        if isinstance(inputs, Sized) and not isinstance(inputs, str) and len(inputs) == 0:
            return []
        if isinstance(inputs, list):
            for text in inputs:
                _check_text(text)
        results = super().__call__(inputs, **kwargs)
        if isinstance(inputs, list) and all(len(found) == 1 for found in results):
            return [found[0] for found in results]
        return results

    def preprocess(self, input_: str, truncation: bool = False) -> dict[str, Tensor]:
        """Ids and mask `(1, S)` of one text, and whether it is blank, bool `(1,)`."""
        _check_text(input_)
        row = self.tokenizer(input_, truncation=truncation, return_tensors="pt")
        return {
            "input_ids": row["input_ids"],
            "attention_mask": row["attention_mask"],
            "is_blank": torch.tensor([not input_.strip()]),
        }

    def _forward(
        self, input_tensors: dict[str, Tensor], return_scores: bool = False, **generate_kwargs: Any
    ) -> dict:
        ids, mask = input_tensors["input_ids"], input_tensors["attention_mask"]
        settings, _ = merged_settings(self.model.generation_config, generate_kwargs)
        if return_scores:
            generate_kwargs |= returned_scores(settings)
        found = self.model.generate(input_ids=ids, attention_mask=mask, **generate_kwargs)
        sequences = found if isinstance(found, Tensor) else found.sequences
        first = prompt_length(settings, generate_kwargs.get("decoder_input_ids"))
        lengths = lengths_until_end(
            sequences,
            prompt_length=first,
            end_ids=settings.eos_token_id,
            pad_token_id=settings.pad_token_id,
        )
        outputs = {
            "sequences": sequences.view(ids.shape[0], -1, sequences.shape[-1]),  # (B, N, T)
            "lengths": lengths.view(ids.shape[0], -1),  # (B, N)
            "is_blank": input_tensors["is_blank"],
        }
        if return_scores:
            scores = found.get("sequences_scores")  # beam search has them
            if scores is None:
                scores = self._scores(input_tensors, sequences, (first, lengths), settings)
            outputs["scores"] = scores.view(ids.shape[0], -1)  # (B, N)
        return outputs

    def _scores(
        self,
        input_tensors: dict[str, Tensor],
        sequences: Tensor,
        spans: tuple[int, Tensor],
        settings: GenerationConfig,
    ) -> Tensor:
        """`(B * N,)` log-probability of the generated tokens, divided by the length penalty."""
        first, lengths = spans
        sources = {
            name: input_tensors[name].repeat_interleave(
                sequences.shape[0] // input_tensors[name].shape[0], dim=0
            )
            for name in ("input_ids", "attention_mask")
        }
        logits = self.model(**sources, decoder_input_ids=sequences[:, :-1]).logits
        log_probs = logits.float().log_softmax(dim=-1)  # (B * N, T - 1, V)
        chosen = log_probs.gather(-1, sequences[:, 1:, None]).squeeze(-1)
        index = torch.arange(1, sequences.shape[-1], device=sequences.device)
        is_counted = (index >= first) & (index < lengths[:, None])
        totals = chosen.masked_fill(~is_counted, 0.0).sum(dim=-1)
        counts = (lengths - first).clamp(min=1).tolist()
        penalties = [penalty_of(count, settings) for count in counts]
        return totals / totals.new_tensor(penalties)

    def postprocess(
        self,
        model_outputs: dict[str, Tensor],
        return_tensors: bool = False,
        return_text: bool | None = None,
        clean_up_tokenization_spaces: bool | None = None,
    ) -> list[dict[str, Any]]:
        """One record per sequence of one text."""
        records, is_blank = [], model_outputs["is_blank"].item()
        rows, lengths = model_outputs["sequences"][0], model_outputs["lengths"][0].tolist()
        for row, length in zip(rows, lengths, strict=True):
            ids = row[: 0 if is_blank else length]
            record: dict[str, Any] = {"translation_token_ids": ids} if return_tensors else {}
            if not return_tensors if return_text is None else return_text:
                record["translation_text"] = self.tokenizer.decode(
                    ids,
                    skip_special_tokens=True,
                    clean_up_tokenization_spaces=clean_up_tokenization_spaces,
                )
            records.append(record)
        if "scores" in model_outputs:
            for record, score in zip(records, model_outputs["scores"][0].tolist(), strict=True):
                record["score"] = None if is_blank else score
        return records

    def save_pretrained(self, save_directory: Any, **kwargs: Any) -> None:
        """Save model and tokenizer; their code too where they were loaded from such code."""
        self.model.save_pretrained(save_directory, **kwargs)
        self.tokenizer.save_pretrained(save_directory, **kwargs)


def _check_text(text: Any) -> None:
    if not isinstance(text, str):
        hint = "; for rows of a dataset use KeyDataset" if isinstance(text, dict) else ""
        raise ValueError(
            f"give text or a list of texts, not {type(text).__name__}: {text!r:.60}{hint}"
        )


def lengths_until_end(
    sequences: Tensor,
    *,
    prompt_length: int,
    end_ids: int | list[int] | None,
    pad_token_id: int | None,
) -> Tensor:
    """Tokens of each generated sequence up to its end token; padding follows it in a batch.

    The start token may be the end token as well, so the search begins after the prompt.

    Args:
        sequences: `(N, T)` int64, as `generate()` returns them.
        prompt_length: tokens given to the decoder, the start token included.
        end_ids: end token or tokens.
        pad_token_id: padding of sequences without an end token.

    Returns:
        `(N,)` int64, prompt and end token included.
    """
    index = torch.arange(sequences.shape[-1], device=sequences.device)
    is_new = index >= prompt_length
    known = [] if end_ids is None else end_ids
    ends = torch.as_tensor(known, dtype=sequences.dtype, device=sequences.device)
    is_end = torch.isin(sequences, ends) & is_new
    is_real = sequences.ne(-1 if pad_token_id is None else pad_token_id) & is_new
    last_real = torch.where(is_real, index, prompt_length - 1).amax(dim=-1)
    return torch.where(is_end.any(dim=-1), is_end.int().argmax(dim=-1), last_real) + 1
