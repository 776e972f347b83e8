"""Labelled images: what is read, in which form, and what is refused."""

import io
import pickle
import re
from itertools import product

import numpy as np
import pytest
import torch
from datasets import ClassLabel, Dataset, Features, Value
from datasets import Image as ImageFeature
from image_files import colour_folder, coloured, damaged
from PIL import Image
from torch.testing import assert_close

from hf_vanilla.data.image_models import normalised
from hf_vanilla.data.images import (
    ImageError,
    check_classes,
    header_size,
    load_images,
    open_image,
    read_digit_file,
    read_image_folder,
)
from hf_vanilla.images.batches import ImageReader, image_processor, pixel_statistics
from hf_vanilla.images.evaluation import EvaluateImagesOptions, labelled_as
from hf_vanilla.images.task import FINGERPRINT_FILE, check_unchanged


def test_a_folder_of_class_folders_is_read_in_a_fixed_order(tmp_path):
    colour_folder(tmp_path, count=3)
    (tmp_path / "red" / "notes.txt").write_text("no image")
    coloured(tmp_path / "red" / "deeper" / "x.JPEG", (230, 20, 20))
    for hidden in (".ipynb_checkpoints/0.png", "red/.ipynb_checkpoints/0.png", "red/._0.png"):
        coloured(tmp_path / hidden, (230, 20, 20))
    (tmp_path / ".cache").mkdir()
    images = read_image_folder(tmp_path)
    assert images.label_names == ("blue", "red")
    assert images.labels.tolist() == [0, 0, 0, 1, 1, 1, 1]
    assert images.names[3:] == ["red/0.png", "red/1.png", "red/2.png", "red/deeper/x.JPEG"]
    red = np.asarray(images.open(4))
    assert red.shape == (11, 12, 3)
    assert red[..., 0].mean() > 200


def test_a_split_is_a_subfolder(tmp_path):
    colour_folder(tmp_path / "train", count=3)
    colour_folder(tmp_path / "test", count=2)
    assert len(load_images(str(tmp_path), "train")) == 6
    assert len(load_images(str(tmp_path), "test")) == 4


@pytest.mark.parametrize(
    ("folders", "split"),
    [
        (("Test", "Train"), "train"),
        (("test", "train"), "trian"),
        (("train", "validation", "notes"), "valid"),
    ],
    ids=str,
)
def test_splits_are_not_taken_for_classes(tmp_path, folders, split):
    for name in folders:
        colour_folder(tmp_path / name, count=1, names=("blue", "red") if name != "notes" else ())
        (tmp_path / name).mkdir(exist_ok=True)
    example = re.escape(str(tmp_path / folders[0]))
    told = f"has no folder '{split}', but {folders[0]}, {folders[1]}: give.* such as {example}, or "
    with pytest.raises(ValueError, match=f"{told}.* --split, .* by --train_split and --validation"):
        load_images(str(tmp_path), split)


def test_a_class_may_have_the_name_of_a_split(tmp_path):
    for name in ("car", "train"):
        coloured(tmp_path / name / "0.png", (20, 20, 20))
    assert load_images(str(tmp_path), "validation").label_names == ("car", "train")


def test_the_built_in_digits_are_those_of_scikit_learn():
    digits = pytest.importorskip("sklearn.datasets").load_digits()
    images = load_images("digits")
    assert len(images) == 1797
    assert images.labels.tolist() == digits.target.tolist()
    pixels = np.asarray(images.open(5))
    assert pixels.shape == (8, 8, 3)
    assert_close(torch.tensor(pixels[..., 1] * (16 / 255)).round(), torch.tensor(digits.images[5]))
    halves = load_images("digits", "first_half"), load_images("digits", "second_half")
    assert [len(half) for half in halves] == [898, 899]
    assert np.asarray(halves[1].open(0)).tolist() == np.asarray(images.open(898)).tolist()
    with pytest.raises(ValueError, match="split='third': the digits have train, first_half"):
        load_images("digits", "third")


def test_a_file_of_optdigits_is_read_and_another_refused(tmp_path):
    rows = [[16, *[0] * 63, 7], [*[0] * 63, 8, 2]]
    path = tmp_path / "digits.tra"
    path.write_text("\n".join(",".join(map(str, row)) for row in rows))
    images = read_digit_file(path)
    assert images.labels.tolist() == [7, 2]
    first = np.asarray(images.open(0))
    assert first[0, 0].tolist() == [255, 255, 255]
    assert first.sum() == 3 * 255
    path.write_text("1,2,3")
    with pytest.raises(ValueError, match="each line must hold 64 pixels"):
        read_digit_file(path)
    path.write_text("a,b")
    with pytest.raises(ValueError, match="no file of optdigits"):
        load_images(str(path))


def test_a_dataset_of_the_hub_form_is_read_by_its_columns(tmp_path, monkeypatch):
    colour_folder(tmp_path, count=2)
    paths = sorted(str(path) for path in tmp_path.rglob("*.png"))
    rows = {"picture": paths, "kind": [0, 0, 1, 1]}
    features = Features({"picture": ImageFeature(), "kind": ClassLabel(names=["b", "r"])})
    dataset = Dataset.from_dict(rows, features=features)
    monkeypatch.setattr("datasets.load_dataset", lambda name, split: dataset)
    images = load_images("some/dataset", image_column="picture", label_column="kind")
    assert images.label_names == ("b", "r")
    options = EvaluateImagesOptions(
        model="m", dataset="some/dataset", image_column="picture", label_column="kind"
    )
    assert labelled_as(options, ["r", "b"]).labels.tolist() == [1, 1, 0, 0]
    unlabelled = Dataset.from_dict(rows | {"kind": [-1] * 4}, features=features)
    with monkeypatch.context() as patch:  # a test split of the Hub often has no labels
        patch.setattr("datasets.load_dataset", lambda name, split: unlabelled)
        with pytest.raises(ValueError, match="labels from -1 to -1, but 2 label names"):
            labelled_as(options, ["r", "b"])
    assert np.asarray(images.open(3)).shape == (11, 12, 3)
    with pytest.raises(ValueError, match="no column 'image': choose among picture, kind"):
        load_images("some/dataset", label_column="kind")
    texts = dataset.cast_column("kind", Value("string"))
    monkeypatch.setattr("datasets.load_dataset", lambda name, split: texts)
    images = load_images("some/dataset", image_column="picture", label_column="kind")
    assert images.label_names == ("0", "1")
    for kind in (features, features | {"kind": Value("string")}):
        missing = Dataset.from_dict(rows | {"kind": [0, None, 1, None]}, features=Features(kind))
        monkeypatch.setattr("datasets.load_dataset", lambda name, split, found=missing: found)
        with pytest.raises(ValueError, match="2 images without a label in the column 'kind'"):
            load_images("some/dataset", image_column="picture", label_column="kind")


def test_a_row_of_the_hub_without_an_image_is_named(monkeypatch):
    rows = {"image": [None, None], "label": ["a", "b"]}
    dataset = Dataset.from_dict(rows, Features(image=ImageFeature(), label=Value("string")))
    monkeypatch.setattr("datasets.load_dataset", lambda name, split: dataset)
    with pytest.raises(ImageError, match=r"some/dataset\[1\] has no image: leave the row out"):
        load_images("some/dataset").open(1)


# --- kinds of files ----------------------------------------------------------------------------


def test_grey_palette_cmyk_and_alpha_become_rgb(tmp_path):
    for mode, color, expected in (
        ("L", 90, (90, 90, 90)),
        ("1", 1, (255, 255, 255)),
        ("CMYK", (0, 255, 255, 0), (255, 0, 0)),
        ("RGBA", (10, 20, 30, 0), (10, 20, 30)),
        ("LA", (40, 128), (40, 40, 40)),
    ):
        path = tmp_path / f"{mode}.{'tif' if mode == 'CMYK' else 'png'}"
        Image.new(mode, (3, 2), color).save(path)
        image = open_image(path)
        assert image.mode == "RGB"
        assert np.asarray(image)[0, 0].tolist() == pytest.approx(expected, abs=2)


def test_sixteen_bits_are_scaled_not_clipped(tmp_path):
    values = np.array([[0, 257 * 100], [65535, 256]], dtype=np.uint16)
    Image.fromarray(values).save(tmp_path / "deep.png")
    found = np.asarray(open_image(tmp_path / "deep.png"))[..., 0]
    assert found.tolist() == [[0, 100], [255, 1]]


def test_an_animation_gives_its_first_frame(tmp_path):
    frames = [Image.new("RGB", (4, 4), color) for color in ((250, 0, 0), (0, 250, 0))]
    frames[0].save(tmp_path / "two.gif", save_all=True, append_images=frames[1:])
    red, green, _ = np.asarray(open_image(tmp_path / "two.gif"))[0, 0]
    assert red > 200 > green


@pytest.mark.parametrize("suffix", ["jpg", "png", "webp", "tif"])
def test_exif_orientation_is_applied(suffix, tmp_path):
    image, exif = Image.new("RGB", (4, 2), (5, 5, 5)), Image.Exif()
    exif[0x0112] = 6  # turned by 90 degrees
    path = tmp_path / f"turned.{suffix}"
    image.save(path, exif=exif)
    assert open_image(path).size == (2, 4)
    assert header_size(path) == (4, 2)


def test_one_pixel_is_an_image_and_more_than_50_million_are_refused_by_the_header(
    tmp_path, monkeypatch
):
    Image.new("RGB", (1, 1), (9, 9, 9)).save(tmp_path / "dot.png")
    assert open_image(tmp_path / "dot.png").size == (1, 1)
    sides = (7_100, 30_000)  # Pillow itself refuses the second
    for side in sides:
        Image.new("1", (side, side)).save(tmp_path / f"{side}.png")
    monkeypatch.setattr("PIL.ImageFile.ImageFile.load", lambda _: pytest.fail("was decoded"))
    for side, read in product(sides, (open_image, header_size)):
        with pytest.raises(ImageError, match=rf"{side}\.png has more than 50,000,000 pixels"):
            read(tmp_path / f"{side}.png")


def test_damaged_files_are_named(tmp_path):
    for path in damaged(tmp_path):
        word = "is empty" if path.name == "empty.png" else "is damaged or no image"
        with pytest.raises(ImageError, match=rf"{path.name} {word}"):
            open_image(path)
    with pytest.raises(FileNotFoundError):
        open_image(tmp_path / "gone.png")
    with pytest.raises(ImageError, match=r"^the picture is damaged or no image: replace or remove"):
        open_image(io.BytesIO(b"no image"), name="the picture")


# --- batches -----------------------------------------------------------------------------------


def test_a_batch_equals_the_image_processor(tmp_path):
    colour_folder(tmp_path, count=3)
    images = read_image_folder(tmp_path)
    processor = image_processor((5, 7), *pixel_statistics(ImageReader(images, (5, 7))))
    expected = processor([images.open(row) for row in (4, 0)], return_tensors="pt")["pixel_values"]
    pixels, labels = ImageReader(images, (5, 7)).read([4, 0])
    assert labels.tolist() == [1, 0]
    # float32 values, scaled in another order
    assert_close(normalised(pixels.float() / 255, processor), expected, rtol=0, atol=1e-5)


def test_statistics_by_hand(tmp_path):
    for name, value in (("a", 0), ("b", 255)):
        (tmp_path / name).mkdir()
        Image.new("RGB", (4, 4), (value, value, 51)).save(tmp_path / name / "x.png")
    mean, deviation = pixel_statistics(ImageReader(read_image_folder(tmp_path), (4, 4)))
    assert mean == pytest.approx([0.5, 0.5, 0.2])
    assert deviation == pytest.approx([0.5, 0.5, 1.0])  # one value only: nothing to divide by


def test_an_unreadable_image_is_black_ignored_and_counted_unless_asked(tmp_path):
    colour_folder(tmp_path, count=2)
    (tmp_path / "red" / "1.png").write_bytes(b"")
    images = read_image_folder(tmp_path)
    reader = ImageReader(images, (4, 4))
    pixels, labels = reader.read([3, 2, 0])
    assert labels.tolist() == [-100, 1, 0]
    assert not pixels[0].any()
    assert reader.unreadable.tolist() == [False, False, False, True]
    assert "1 unreadable of 4 images" in reader.left_out()
    assert "the first is red/1.png" in reader.left_out()
    assert images.labels.tolist() == [0, 0, 1, 1]  # the labels themselves stay
    with pytest.raises(ImageError, match=r"red/1\.png is empty"):
        ImageReader(images, (4, 4), stop_at_errors=True).read([3])


def test_sources_can_be_sent_to_worker_processes(tmp_path):
    colour_folder(tmp_path, count=2)
    images = pickle.loads(pickle.dumps(read_image_folder(tmp_path).subset([3, 1])))
    assert images.names == ["red/1.png", "blue/1.png"]
    assert np.asarray(images.open(0))[..., 0].mean() > 200


def test_changed_files_are_counted(tmp_path):
    colour_folder(tmp_path, count=3)
    (tmp_path / "red" / "run").mkdir()
    np.save(tmp_path / "red" / "run" / FINGERPRINT_FILE, read_image_folder(tmp_path).fingerprints)
    check_unchanged(read_image_folder(tmp_path), tmp_path / "red" / "run")
    (tmp_path / "red" / "1.png").unlink()
    coloured(tmp_path / "blue" / "0.png", (1, 2, 3), size=(50, 50))
    with pytest.raises(ValueError, match=r"2 of 5 images of .* changed since the run in"):
        check_unchanged(read_image_folder(tmp_path), tmp_path / "red" / "run")


# --- what is refused ---------------------------------------------------------------------------


def test_folders_that_no_classifier_can_be_trained_on_are_refused(tmp_path):
    with pytest.raises(ValueError, match="has no subfolders"):
        read_image_folder(tmp_path)
    colour_folder(tmp_path, names=["red"])
    with pytest.raises(ValueError, match="has one class only, 'red'"):
        check_classes(read_image_folder(tmp_path))
    (tmp_path / "Empty").mkdir()
    with pytest.raises(ValueError, match=r"Empty holds no image .*: fill it or remove it"):
        read_image_folder(tmp_path)
    (tmp_path / "Red").mkdir()
    with pytest.raises(ValueError, match="differ by case alone, Red, red"):
        read_image_folder(tmp_path)


def test_a_class_that_the_model_does_not_know_is_refused(tmp_path):
    colour_folder(tmp_path, names=["green", "red"])
    with pytest.raises(
        ValueError, match=r"'green', which is not among the 2 labels of the model \(blue, red\)"
    ):
        read_image_folder(tmp_path).relabelled(["blue", "red"])
    images = read_image_folder(tmp_path).relabelled(["red", "blue", "green"])
    assert images.labels.tolist() == [2] * 6 + [0] * 6


def test_labels_are_checked_before_training(tmp_path):
    colour_folder(tmp_path)
    images = read_image_folder(tmp_path)
    check_classes(images)
    with pytest.raises(ValueError, match="has no image of 'red'"):
        check_classes(images.subset([0, 1]))
    with pytest.raises(ValueError, match="holds no images"):
        check_classes(images.subset([]))
    images.labels[0] = 2
    with pytest.raises(ValueError, match="labels from 0 to 2, but 2 label names"):
        check_classes(images)
