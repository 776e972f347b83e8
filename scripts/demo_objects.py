"""Train a detector on generated digit scenes, score unseen writers, draw: `make demo-objects`."""

from PIL import Image

from hf_vanilla.commands import run
from hf_vanilla.objects.coco_scores import score_detector
from hf_vanilla.objects.detector import drawn_objects, load_detector, object_attention
from hf_vanilla.objects.digit_scenes import digit_scenes
from hf_vanilla.objects.plot import save_query_attention
from hf_vanilla.training.recipe import Recipe, read_recipe
from hf_vanilla.training.run import train

RECIPE = "digit_scenes_halves"
COLUMNS, GAP = 4, 4  # scenes in a row; pixels between two
SEED, SCENES, DRAWN = 7, 200, 12  # scenes that neither training nor its validation saw


def demo(recipe: Recipe) -> None:
    """Show the whole way once, from pixels to boxes and to the attention of their queries."""
    folder = train(recipe)
    detector = load_detector(str(folder))
    scenes = digit_scenes(split="second_half", seed=SEED)
    print(f"\n{score_detector(detector, scenes.images(SCENES))}")

    images = [scenes.read(number)[0] for number in range(DRAWN)]
    found = [entry.above(0.5) for entry in detector.detect(images)]
    drawn = [
        drawn_objects(image, entry, detector.label_names)
        for image, entry in zip(images, found, strict=True)
    ]
    width, height = (side + GAP for side in drawn[0].size)
    gallery = Image.new("RGB", (COLUMNS * width - GAP, DRAWN // COLUMNS * height - GAP), "white")
    for number, picture in enumerate(drawn):
        gallery.paste(picture, (width * (number % COLUMNS), height * (number // COLUMNS)))
    gallery.save(folder / "gallery.png")
    print(f"\nThe model folder: {folder}\nBoxes:            {folder / 'gallery.png'}")
    if len(found[0]):
        figure = folder / "queries.png"
        attention = object_attention(detector, images[0])
        save_query_attention(images[0], attention, detector.label_names, figure)
        print(f"Attention:        {figure}")


if __name__ == "__main__":
    run(demo, lambda arguments: read_recipe(["--recipe", RECIPE, *arguments]))
