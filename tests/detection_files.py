"""Small detection data sets, models and files that several tests need."""

import json

import numpy as np
from PIL import Image
from transformers import ResNetConfig

from hf_vanilla.models.configuration_vanilla_detr import VanillaDetrConfig
from hf_vanilla.models.modeling_vanilla_detr import VanillaForObjectDetection
from hf_vanilla.objects.detection import DetectionImages, detection_processor, objects_of

TINY_BACKBONE = {
    "model_type": "resnet",
    "embedding_size": 8,
    "hidden_sizes": [8, 12],
    "depths": [1, 1],
    "layer_type": "basic",
    "out_features": ["stage2"],
}
TINY = {
    "backbone_config": TINY_BACKBONE,
    "backbone_is_pretrained": False,
    "num_queries": 7,
    "d_model": 16,
    "encoder_layers": 1,
    "encoder_attention_heads": 2,
    "encoder_ffn_dim": 24,
    "decoder_layers": 2,
    "decoder_attention_heads": 2,
    "decoder_ffn_dim": 20,
    "dropout": 0.0,
    "attention_dropout": 0.0,
    "activation_dropout": 0.0,
}


def tiny_detector(folder, names=("a", "b", "c")):
    """Save a random detector with its processor; returns the model."""
    backbone = ResNetConfig(**{k: v for k, v in TINY_BACKBONE.items() if k != "model_type"})
    config = VanillaDetrConfig(
        **TINY | {"backbone_config": backbone},
        id2label=dict(enumerate(names)),
        label2id={name: place for place, name in enumerate(names)},
    )
    model = VanillaForObjectDetection(config).eval()
    model.save_pretrained(folder)
    detection_processor(64, 96).save_pretrained(folder)
    return model


def boxed_images(objects, names=("a", "b"), size=(40, 50), **changes):
    """Black images with objects given as (label, left, top, right, bottom)."""
    rows = [
        objects_of([entry[0] for entry in row], [entry[1:5] for entry in row]) for row in objects
    ]
    given = {
        "objects": rows,
        "sizes": np.asarray([size] * len(rows)),
        "label_names": tuple(names),
        "category_ids": tuple(3 * place + 1 for place in range(len(names))),
        "image_ids": [100 + row for row in range(len(rows))],
        "names": [f"{row}.png" for row in range(len(rows))],
        "open": lambda row: Image.new("RGB", size[::-1]),
        "origin": "boxes",
    }
    return DetectionImages(**given | changes)


def write_coco(folder, *, images=None, annotations=None, categories=None, size=(30, 20)):
    """A COCO file with one image of 30 x 20 pixels and what is given; returns its path."""
    folder.mkdir(parents=True, exist_ok=True)
    entry = {"id": 7, "file_name": "a.png", "width": size[0], "height": size[1]}
    content = {
        "images": [entry] if images is None else images,
        "annotations": annotations
        if annotations is not None
        else [{"id": 1, "image_id": 7, "category_id": 18, "bbox": [2, 3, 10, 5]}],
        "categories": categories or [{"id": 18, "name": "dog"}, {"id": 3, "name": "car"}],
    }
    Image.new("RGB", size, "white").save(folder / "a.png")
    path = folder / "boxes.json"
    path.write_text(json.dumps(content))
    return path
