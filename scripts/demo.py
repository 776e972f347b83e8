"""Train on the built-in corpus, translate unseen numbers, score, draw: what `make demo` runs."""

from hf_vanilla.commands import run
from hf_vanilla.data.corpus import built_in_corpus
from hf_vanilla.plots.attention import PlotAttentionOptions, plot_attention
from hf_vanilla.recipes.recipe import Recipe, read_recipe
from hf_vanilla.training.run import train
from hf_vanilla.translation.evaluation import score_translations
from hf_vanilla.translation.translator import load_translator, translate

RECIPE = "numbers"
SENTENCE = "seven hundred forty-two thousand three hundred nineteen"


def demo(recipe: Recipe) -> None:
    """Show the whole way once, from words to a picture of attention."""
    folder = train(recipe)
    model, tokenizer = load_translator(str(folder))
    unseen = built_in_corpus()["test"]
    references = unseen["target"][:]
    translations = translate(model, tokenizer, unseen["source"][:], progress=True)

    print("\nTen numbers that were never trained on:")
    shown = zip(unseen["source"][:10], translations[:10], references[:10], strict=True)
    for source, translation, reference in shown:
        mark = "right" if translation == reference else f"WRONG, not {reference}"
        print(f"  {source}\n    -> {translation}  ({mark})")
    # a German number is one word, so BLEU counts characters here; its signature says so
    print(f"\nAll {len(unseen):,} unseen numbers:")
    print(score_translations(translations, references, tokenize="char"))

    picture = plot_attention(
        PlotAttentionOptions(
            model=str(folder),
            sentence=SENTENCE,
            output=str(folder / "attention.png"),
            overwrite=True,
        )
    )
    print(f"\nThe model folder: {folder}\nWhere it looked:  {picture}")


if __name__ == "__main__":
    run(demo, lambda arguments: read_recipe(["--recipe", RECIPE, *arguments]))
