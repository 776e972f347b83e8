"""Our image model under the test suites of transformers; not collected by default.

As `common_suites.py`, which says how to run them. Transformers' ViT runs beside ours under the same
suites, so that skipped tests can be compared: 55 of 159 against 59 of its own.
"""

import unittest

from tests.test_configuration_common import ConfigTester
from tests.test_modeling_common import ModelTesterMixin, floats_tensor
from torch import nn
from transformers import ViTConfig, ViTForImageClassification, ViTModel
from transformers.models.auto import modeling_auto

from hf_vanilla import VanillaForImageClassification, VanillaVitConfig, VanillaVitModel

# the suites look these tables up by class name, to learn which labels a head takes
modeling_auto.MODEL_MAPPING_NAMES["vanilla_vit"] = "VanillaVitModel"
modeling_auto.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES["vanilla_vit"] = (
    "VanillaForImageClassification"
)


class Tester:
    """The small model that the suites build, and a batch for it."""

    batch_size, num_channels, image_size, patch_size = 13, 3, 30, 2
    hidden_size, num_hidden_layers, num_attention_heads, intermediate_size = 32, 2, 4, 37
    num_labels, is_training = 10, True
    mask_length = (image_size // patch_size) ** 2
    num_masks = mask_length // 2  # patches that transformers' ViT hides where a suite asks for it
    seq_length = mask_length + 1

    def get_config(self) -> VanillaVitConfig:
        """With attention dropout, which a suite needs to see that it is off in evaluation."""
        return VanillaVitConfig(
            image_size=self.image_size,
            patch_size=self.patch_size,
            d_model=self.hidden_size,
            encoder_layers=self.num_hidden_layers,
            encoder_attention_heads=self.num_attention_heads,
            encoder_ffn_dim=self.intermediate_size,
            dropout=0.1,
            attention_dropout=0.1,
            attn_implementation="eager",
        )

    def prepare_config_and_inputs_for_common(self) -> tuple:
        """Images alone."""
        sizes = [self.batch_size, self.num_channels, self.image_size, self.image_size]
        return self.get_config(), {"pixel_values": floats_tensor(sizes)}


class TheirTester(Tester):
    """The same sizes for transformers' ViT."""

    def get_config(self) -> ViTConfig:
        """As above."""
        return ViTConfig(
            image_size=self.image_size,
            patch_size=self.patch_size,
            hidden_size=self.hidden_size,
            num_hidden_layers=self.num_hidden_layers,
            num_attention_heads=self.num_attention_heads,
            intermediate_size=self.intermediate_size,
            hidden_dropout_prob=0.1,
            attention_probs_dropout_prob=0.1,
            attn_implementation="eager",
        )


class VanillaVitTest(ModelTesterMixin, unittest.TestCase):
    all_model_classes = (VanillaVitModel, VanillaForImageClassification)
    test_resize_embeddings = False
    tester_class, config_class, width = Tester, VanillaVitConfig, {"d_model": 36}

    def setUp(self):
        self.model_tester = self.tester_class()
        self.config_tester = ConfigTester(
            self, config_class=self.config_class, has_text_modality=False, **self.width
        )

    def test_config(self):
        self.config_tester.run_common_tests()

    def test_model_get_set_embeddings(self):
        """As in transformers' own test of ViT: the input layer is a convolution, no table."""
        for model_class in self.all_model_classes:
            model = model_class(self.model_tester.get_config())
            assert isinstance(model.get_input_embeddings(), nn.Module)
            assert model.get_output_embeddings() is None


class TheirVitTest(VanillaVitTest):
    all_model_classes = (ViTModel, ViTForImageClassification)
    tester_class, config_class, width = TheirTester, ViTConfig, {"hidden_size": 36}
