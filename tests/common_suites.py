"""Our models under the test suites that transformers runs on its own; not collected by default.

The suites lie in transformers' repository, not in its package. With a checkout of the tag that is
installed:

    PYTHONPATH=<transformers checkout> python -m pytest -o addopts= tests/common_suites.py

A suite reads a model's size from its tester and asks nothing more of it. Where one is overridden
here, the docstring says why.
"""

import copy
import unittest
from collections.abc import Callable
from unittest import mock

import torch
from tests.generation.test_utils import GenerationTesterMixin
from tests.test_configuration_common import ConfigTester
from tests.test_fsdp_mixin import FSDPTesterMixin
from tests.test_memory_cleanup_mixin import MemoryCleanupMixin
from tests.test_modeling_common import ModelTesterMixin, ids_tensor
from tests.test_tensor_parallel_mixin import TensorParallelTesterMixin
from tests.test_training_mixin import TrainingTesterMixin
from transformers import GenerationConfig
from transformers.models.auto import modeling_auto

from hf_vanilla import (
    VanillaConfig,
    VanillaEncoderModel,
    VanillaForCausalLM,
    VanillaForConditionalGeneration,
    VanillaForSequenceClassification,
    VanillaModel,
)
from hf_vanilla.models.modeling_vanilla_one_sided import VanillaDecoderModel
from tests import test_fsdp_mixin, test_tensor_parallel_mixin

# the suites look these tables up by class name, to learn which labels a head takes
modeling_auto.MODEL_MAPPING_NAMES["vanilla"] = (
    "VanillaModel",
    "VanillaEncoderModel",
    "VanillaDecoderModel",
)
modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES["vanilla"] = (
    "VanillaForConditionalGeneration"
)
modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES["vanilla"] = "VanillaForCausalLM"
modeling_auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES["vanilla"] = (
    "VanillaForSequenceClassification"
)
# transformers starts processes for a few of its models only; these two open them to all
test_tensor_parallel_mixin.TP_DISTRIBUTED_TEST_MODEL_TYPES = None
test_fsdp_mixin.FSDP_DISTRIBUTED_TEST_MODEL_TYPES = None


class Tester:
    """The small model that the suites build, and a batch for it."""

    first_word = 4
    batch_size, seq_length, is_training, num_labels = 13, 7, True, 3
    vocab_size, hidden_size, num_hidden_layers, num_attention_heads = 99, 16, 2, 4
    conditional_generation_class = causal_lm_class = None

    def get_config(self) -> VanillaConfig:
        """Special tokens away from 0, with which the suites fill their labels."""
        return VanillaConfig(
            vocab_size=self.vocab_size,
            d_model=self.hidden_size,
            encoder_layers=self.num_hidden_layers,
            encoder_attention_heads=self.num_attention_heads,
            encoder_ffn_dim=4,
            decoder_layers=self.num_hidden_layers,
            decoder_attention_heads=self.num_attention_heads,
            decoder_ffn_dim=4,
            attention_dropout=0.1,
            bos_token_id=0,
            pad_token_id=1,
            eos_token_id=2,
            decoder_start_token_id=3,
        )

    def prepare_config_and_inputs_for_common(self) -> tuple:
        """One text, without padding."""
        input_ids = ids_tensor([self.batch_size, self.seq_length], self.vocab_size).clamp(
            self.first_word
        )
        mask = torch.ones_like(input_ids)
        return self.get_config(), {"input_ids": input_ids, "attention_mask": mask}


class PairTester(Tester):
    """Source and target."""

    conditional_generation_class = VanillaForConditionalGeneration

    def prepare_config_and_inputs_for_common(self) -> tuple:
        """As above, with as many targets."""
        config, inputs = super().prepare_config_and_inputs_for_common()
        target = ids_tensor([self.batch_size, self.seq_length], self.vocab_size).clamp(
            self.first_word
        )
        mask = torch.ones_like(target)
        return config, inputs | {"decoder_input_ids": target, "decoder_attention_mask": mask}


class HalfTester(Tester):
    """One side alone."""

    def get_config(self) -> VanillaConfig:
        """Nothing is encoded first and then decoded."""
        config = super().get_config()
        config.is_encoder_decoder = False
        return config


class DecoderTester(HalfTester):
    """The target side, which the distributed suites can call with nothing but ids."""

    causal_lm_class = VanillaForCausalLM


def greedily(test: Callable) -> Callable:
    """The test, with models whose generation config is the one transformers would give them."""
    return mock.patch(
        "hf_vanilla.models.modeling_vanilla.paper_decoding", GenerationConfig.from_model_config
    )(test)


class VanillaPairTest(ModelTesterMixin, GenerationTesterMixin, unittest.TestCase):
    all_model_classes = (VanillaModel, VanillaForConditionalGeneration)
    is_encoder_decoder = True

    # These three leave `num_beams` to the model and mean greedy search: only that is compiled, and
    # only that can be cut in two. Our models' own default is the paper's beam of four.
    test_generate_continue_from_past_key_values = greedily(
        GenerationTesterMixin.test_generate_continue_from_past_key_values
    )
    test_generate_compile_model_forward_fullgraph = greedily(
        GenerationTesterMixin.test_generate_compile_model_forward_fullgraph
    )
    test_static_cache_no_recompile_with_smaller_length = greedily(
        GenerationTesterMixin.test_static_cache_no_recompile_with_smaller_length
    )

    def setUp(self):
        self.model_tester = PairTester()
        self.config_tester = ConfigTester(self, config_class=VanillaConfig)

    def test_config(self):
        self.config_tester.run_common_tests()


class VanillaEncoderTest(ModelTesterMixin, unittest.TestCase):
    all_model_classes = (VanillaEncoderModel, VanillaForSequenceClassification)
    # It loads the head's checkpoint by `AutoModel` too and calls the result with a source alone;
    # ours stands for the pair there, so the half is named.
    test_load_with_mismatched_shapes = mock.patch(
        "tests.test_modeling_common.AutoModel", VanillaEncoderModel
    )(ModelTesterMixin.test_load_with_mismatched_shapes)

    def setUp(self):
        self.model_tester = HalfTester()


class VanillaDecoderTest(ModelTesterMixin, GenerationTesterMixin, unittest.TestCase):
    all_model_classes = (VanillaDecoderModel, VanillaForCausalLM)

    def setUp(self):
        self.model_tester = DecoderTester()


def exact(tester: Tester) -> Tester:
    """These suites compare losses of several processes and wait for one near 0.

    Dropout, drawn in each process for itself, keeps the first from agreeing, smoothing the other
    from falling.
    """
    config = tester.get_config()
    config.dropout = config.attention_dropout = config.label_smoothing = 0.0
    tester.get_config = lambda: copy.deepcopy(config)
    return tester


class TranslatesItself(VanillaForConditionalGeneration):
    """Takes the one text that these suites bring as its source and as its target."""

    def forward(self, input_ids=None, decoder_input_ids=None, labels=None, **kwargs):
        if decoder_input_ids is None and labels is None:
            decoder_input_ids = input_ids
        return super().forward(
            input_ids, decoder_input_ids=decoder_input_ids, labels=labels, **kwargs
        )


class VanillaPairDistributedTest(TensorParallelTesterMixin, MemoryCleanupMixin, unittest.TestCase):
    all_model_classes = (VanillaModel, VanillaForConditionalGeneration)
    model_tester = None
    run_under_no_grad = False

    def setUp(self):
        super().setUp()
        self.model_tester = exact(PairTester())
        self.model_tester.conditional_generation_class = TranslatesItself


class VanillaDecoderDistributedTest(
    TrainingTesterMixin,
    TensorParallelTesterMixin,
    FSDPTesterMixin,
    MemoryCleanupMixin,
    unittest.TestCase,
):
    all_model_classes = (VanillaDecoderModel, VanillaForCausalLM)
    model_tester = None
    run_under_no_grad = False
    training_overfit_steps = 400  # of Adam without a warm-up, which post-norm takes a little ill

    def setUp(self):
        super().setUp()
        self.model_tester = exact(DecoderTester())

    def _create_text_training_batch(self, **sizes):
        """Their pattern 1, 2, 3... without our padding, which is no target."""
        batch = super()._create_text_training_batch(**sizes)
        return {name: ids + Tester.first_word for name, ids in batch.items()}

    def _get_tiny_config(self):
        """Without padding: their random ids contain it, and each slice of them then counts less."""
        config_class, fields = super()._get_tiny_config()
        return config_class, fields | {"pad_token_id": None}
