"""Fine-tune an image model on a folder of class folders by transformers' Trainer.

    python scripts/finetune_images.py --model vit --dataset photos --output_dir runs/photos \
        --learning_rate 1e-4 --num_train_epochs 3

Every field of TrainingArguments is an option too. `hf-vanilla train --initial_model` fine-tunes by
a recipe instead.
"""

from dataclasses import dataclass, field

from transformers import AutoImageProcessor, HfArgumentParser, Trainer, TrainingArguments

from hf_vanilla.data.images import load_images
from hf_vanilla.images.batches import Augmentation
from hf_vanilla.images.trainer import ImageRows, accuracy, processed_size, with_new_head


@dataclass
class Options:
    """Model and images."""

    model: str = field(metadata={"help": "model folder or Hub id to start from"})
    dataset: str = field(metadata={"help": "folder of class folders, or Hub id"})
    validation: str | None = field(default=None, metadata={"help": "likewise"})
    flip: float = field(default=0.0, metadata={"help": "probability of a mirror image"})


parser = HfArgumentParser((Options, TrainingArguments))
options, arguments = parser.parse_args_into_dataclasses()

images = load_images(options.dataset)
processor = AutoImageProcessor.from_pretrained(options.model)
height, width = processed_size(processor)
processor.size = {"height": height, "width": width}
processor.do_center_crop = False  # training resizes the whole image, so use does too
model = with_new_head(options.model, images.label_names)  # zeros, unless the classes are the same
train, validation = ImageRows(images, processor, Augmentation(flip=options.flip)), None
if options.validation is not None:
    labelled = load_images(options.validation, "validation").relabelled(images.label_names)
    validation = ImageRows(labelled, processor)

trainer = Trainer(
    model,
    arguments,
    train_dataset=train,
    eval_dataset=validation,
    processing_class=processor,
    compute_metrics=accuracy,
)
newest = str(arguments.resume_from_checkpoint) == "True"
trainer.train(resume_from_checkpoint=newest or arguments.resume_from_checkpoint)
trainer.save_model()
if validation is not None:
    trainer.save_metrics("eval", trainer.evaluate())
for rows in filter(None, (train, validation)):
    if (left_out := rows.reader.left_out()) is not None:
        print(left_out)
if arguments.push_to_hub:
    trainer.push_to_hub()
trainer.accelerator.end_training()  # otherwise processes may crash at shutdown
