"""Train on the first half of the built-in digits, score the second, draw: `make demo-images`."""

from hf_vanilla.commands import run
from hf_vanilla.data.images import load_images
from hf_vanilla.images.classifier import load_classifier, patch_attention
from hf_vanilla.images.evaluation import score_classifier
from hf_vanilla.images.plot import save_patch_attention
from hf_vanilla.training.recipe import Recipe, read_recipe
from hf_vanilla.training.run import train

RECIPE = "digits_halves"
DRAWN = 7  # of the unseen digits


def demo(recipe: Recipe) -> None:
    """Show the whole way once, from pixels to a figure of attention."""
    folder = train(recipe)
    classifier, unseen = load_classifier(str(folder)), load_images("digits", "second_half")

    print("\nTen digits that were never trained on:")
    guesses = classifier.guesses([unseen.open(row) for row in range(10)], top_k=1)
    for row, (best,) in enumerate(guesses):
        truth = unseen.label_names[unseen.labels[row]]
        mark = "right" if best.label == truth else f"WRONG, not {truth}"
        print(f"  {unseen.names[row]} -> {best.label} with {best.probability:.2f}  ({mark})")
    print(f"\nAll {len(unseen):,} unseen digits:\n{score_classifier(classifier, unseen)}")

    image = unseen.open(DRAWN)
    figure = folder / "attention.png"
    save_patch_attention(image, patch_attention(classifier, image), figure)
    print(f"\nThe model folder: {folder}\nAttention:        {figure}")


if __name__ == "__main__":
    run(demo, lambda arguments: read_recipe(["--recipe", RECIPE, *arguments]))
