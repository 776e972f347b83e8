"""Rows, batches, sources and the report of detection data."""

import json
import pickle

import numpy as np
import pytest
import torch
from detection_files import boxed_images, write_coco
from PIL import Image
from torch.testing import assert_close

from hf_vanilla.data.images import load_images
from hf_vanilla.objects.detection import (
    BoxAugmentation,
    DetectionCollator,
    augmented,
    coco_content,
    cropped,
    detection_processor,
    detection_row,
    mirrored,
    objects_of,
    save_coco,
)
from hf_vanilla.objects.digit_scenes import digit_scenes
from hf_vanilla.objects.report import detection_report, problems
from hf_vanilla.objects.sources import load_detection_images, read_coco
from hf_vanilla.objects.task import check_trainable


def noise(height, width):
    pixels = np.random.default_rng(height).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


@pytest.mark.parametrize("size", [(40, 60), (60, 40), (64, 64), (30, 95), (201, 37), (1, 90)])
def test_rows_equal_transformers_image_processor(size):
    image, processor = noise(*size), detection_processor(64, 96)
    annotation = {
        "image_id": 1,
        "annotations": [{"bbox": [0, 0, 5, 1], "category_id": 2, "area": 5, "iscrowd": 0, "id": 1}],
    }
    theirs = processor(image, annotations=annotation, return_tensors="pt")
    objects = objects_of([2], [[0, 0, 5, 1]])
    changed = augmented(image, objects, (64, 96), BoxAugmentation(), torch.Generator())
    row = detection_row(*changed, processor)
    assert_close(row["pixel_values"], theirs["pixel_values"][0], atol=1e-5, rtol=0)
    assert_close(row["boxes"], theirs["labels"][0]["boxes"], atol=1e-6, rtol=0)


def test_a_batch_equals_the_padding_of_transformers():
    images, processor = [noise(40, 60), noise(33, 64), noise(64, 20)], detection_processor(64, 96)
    theirs = processor(images, return_tensors="pt")
    plain = (objects_of([], []), (64, 96), BoxAugmentation(), torch.Generator())
    rows = [detection_row(*augmented(image, *plain), processor) for image in images]
    ours = DetectionCollator()(rows)
    assert_close(ours["pixel_values"], theirs["pixel_values"], atol=1e-5, rtol=0)
    assert torch.equal(ours["pixel_mask"], theirs["pixel_mask"])
    assert ours["labels"].shape == (3, 0)


def test_crowds_and_boxes_without_area_are_not_trained_on():
    objects = objects_of(
        [0, 1, 2], [[1, 1, 5, 5], [2, 2, 9, 9], [3, 3, 3, 8]], [False, True, False]
    )
    row = detection_row(Image.new("RGB", (10, 10)), objects, detection_processor(64, 96))
    assert row["labels"].tolist() == [0]


def test_a_box_is_cut_at_the_border():
    objects = objects_of([0], [[-5, 10, 5, 40]])
    row = detection_row(Image.new("RGB", (10, 20)), objects, detection_processor(64, 96))
    assert_close(row["boxes"], torch.tensor([[0.25, 0.75, 0.5, 0.5]]))


def test_ids_of_a_coco_file_become_labels_and_come_back(tmp_path):
    images = read_coco(write_coco(tmp_path))
    assert images.label_names == ("car", "dog")
    assert images.category_ids == (3, 18)
    assert images.objects[0].labels.tolist() == [1]
    assert images.objects[0].boxes.tolist() == [[2, 3, 12, 8]]
    again = read_coco(save_coco(images, tmp_path / "copy"))
    assert again.objects[0].boxes.tolist() == images.objects[0].boxes.tolist()
    assert (again.category_ids, again.image_ids) == ((3, 18), [7])


def test_areas_and_crowds_of_a_coco_file_are_those_of_its_annotations(tmp_path):
    entries = [{"area": 31.5, "iscrowd": "0"}, {"iscrowd": 1}]
    given = [annotation(id=number)[0] | more for number, more in enumerate(entries)]
    images = read_coco(write_coco(tmp_path, annotations=given))
    assert images.objects[0].is_crowd.tolist() == [False, True]
    for data in (images, read_coco(save_coco(images, tmp_path / "copy"))):
        assert [e["area"] for e in coco_content(data)["annotations"]] == [31.5, 50]


def test_images_of_another_size_and_missing_ones_are_reported_and_refused(tmp_path):
    entries = [
        IMAGE,
        IMAGE | {"id": 8, "file_name": "b.png"},
        IMAGE | {"id": 9, "file_name": "c.png"},
    ]
    images = read_coco(write_coco(tmp_path, images=entries, size=(60, 40)))
    (tmp_path / "c.png").write_bytes(b"no image")
    told = detection_report(images)
    assert "1 images do not exist: correct file_name, or give their folder (b.png)" in told
    assert "1 images are damaged or no images" in told
    assert "scale the boxes (a.png: 60 x 40, not 30 x 20)" in told
    assert "EXIF" not in told
    exif = Image.Exif()
    exif[0x0112] = 6  # turned by 90 degrees
    Image.new("RGB", (30, 20)).save(tmp_path / "c.png", exif=exif)
    told = detection_report(images)
    assert (
        "1 images are turned by their EXIF data: annotate the turned image, or remove that data "
        "(c.png: 20 x 30, not 30 x 20)"
    ) in told
    Image.new("RGB", (20, 30)).save(tmp_path / "c.png")
    assert "c.png: 20 x 30, not 30 x 20" in detection_report(images).split("scale the boxes")[1]
    with pytest.raises(ValueError, match="60 x 40 pixels, but the annotations are of 30 x 20"):
        images.open(0)
    (tmp_path / "c.png").write_bytes(b"no image")
    for message, entry in (
        (r"b\.png: no such file; .* names 1 images", entries[1]),
        (r"1 images are damaged or no images: .* \(c\.png\)", entries[2]),
        (r"another size .* \(a\.png: 60 x 40, not 30 x 20\)", entries[0]),
    ):
        notes = annotation(image_id=entry["id"])
        images = read_coco(write_coco(tmp_path, images=[entry], annotations=notes, size=(60, 40)))
        with pytest.raises((FileNotFoundError, ValueError), match=message):
            check_trainable(images, num_queries=9)  # before the first step


IMAGE = {"id": 7, "file_name": "a.png", "width": 30, "height": 20}


def annotation(**changes):
    return [{"id": 1, "image_id": 7, "category_id": 18, "bbox": [2, 3, 10, 5]} | changes]


@pytest.mark.parametrize(
    ("parts", "told"),
    [
        ({"annotations": annotation(image_id=8)}, "annotation 1 is of image_id=8"),
        ({"annotations": annotation(category_id=4)}, "category_id=4; the categories are"),
        ({"annotations": annotation(bbox=[1, 2, float("nan"), 4])}, "four finite numbers"),
        ({"annotations": annotation(bbox=[1, 2, 3])}, "four finite numbers"),
        ({"annotations": annotation(bbox=[5, 5, -3, 4])}, "negative side"),
        (
            {"annotations": [{"id": 1, "image_id": 7, "category_id": 18, "segmentation": []}]},
            "bbox",
        ),
        ({"images": [IMAGE, IMAGE]}, "image id 7 is there twice"),
        ({"images": [IMAGE, IMAGE | {"id": 8}]}, "'a.png' is there twice"),
        ({"images": []}, "holds no images"),
        ({"annotations": annotation(iscrowd="no")}, "iscrowd 'no': give a number from 0 on"),
        ({"annotations": annotation(area=-1)}, "area -1: give a number from 0 on"),
        ({"images": {"a": 1}}, r"images is \{'a': 1\}: give a list"),
        ({"images": [7]}, r"images\[0\] is 7: give keys and values"),
        ({"images": [{"file_name": "a.png"}]}, r"images\[0\]\.id is None: give a number or"),
        ({"images": [{**IMAGE, "height": "x"}]}, "height is 'x': give"),
        ({"categories": [{"id": [1], "name": "dog"}]}, r"categories\[0\]\.id is \[1\]: give"),
        ({"annotations": annotation(image_id=[7])}, r"annotations\[0\]\.image_id is \[7\]: give"),
        ({"annotations": annotation(bbox=[10**400, 0, 1, 1])}, "four finite numbers"),
        ({"annotations": [None]}, r"annotations\[0\] is None: give keys and values"),
    ],
)
def test_a_bad_coco_file_is_refused_with_its_name_and_the_value(tmp_path, parts, told):
    path = write_coco(tmp_path, **parts)
    with pytest.raises(ValueError, match=told) as error:
        read_coco(path)
    assert str(path) in str(error.value)


def test_a_coco_file_names_no_image_outside_of_its_folder(tmp_path):
    for name in ("../secret.png", str(tmp_path / "secret.png"), "a/../../secret.png"):
        path = write_coco(tmp_path / "data", images=[{**IMAGE, "file_name": name}], annotations=[])
        with pytest.raises(ValueError, match=r"secret\.png' is outside of .*data, the folder of"):
            read_coco(path)


def test_images_of_a_coco_file_may_be_links_as_in_the_cache_of_the_hub(tmp_path):
    path = write_coco(tmp_path / "snapshots" / "main")
    blob = (path.parent / "a.png").rename(tmp_path / "blob")
    (path.parent / "a.png").symlink_to(blob)
    assert read_coco(path).open(0).size == (30, 20)


def test_a_truncated_coco_file_is_refused(tmp_path):
    path = write_coco(tmp_path)
    path.write_text(path.read_text()[:40])
    with pytest.raises(ValueError, match="damaged or cut off"):
        read_coco(path)


def test_images_too_large_to_be_opened_are_refused_before_training(tmp_path):
    path = write_coco(tmp_path, images=[IMAGE | {"width": 10_000, "height": 5_001}])
    with pytest.raises(ValueError, match=r"a\.png: a size of 5001 x 10000 is not of 1 to 50"):
        read_coco(path)


def test_a_missing_image_without_size_is_refused(tmp_path):
    path = write_coco(tmp_path, images=[{"id": 7, "file_name": "gone.png"}])
    with pytest.raises(FileNotFoundError, match=r"gone\.png"):
        read_coco(path)


def test_metadata_and_yolo_folders_give_the_boxes_of_the_coco_file(tmp_path):
    truth = read_coco(write_coco(tmp_path / "coco"))
    folder = tmp_path / "meta"
    folder.mkdir()
    truth.open(0).save(folder / "a.png")
    entry = {"file_name": "a.png", "objects": {"bbox": [[2, 3, 10, 5]], "categories": ["dog"]}}
    line = json.dumps({**entry, "text": "a\u2028b\u0085c"}, ensure_ascii=False)
    (folder / "metadata.jsonl").write_text(f"{line}\n", encoding="utf-8")
    yolo = tmp_path / "yolo"
    for name in ("images", "labels"):
        (yolo / name / "train").mkdir(parents=True)
    truth.open(0).save(yolo / "images" / "train" / "a.png")
    (yolo / "images" / "train" / "._a.png").write_bytes(b"a hidden file of macOS")
    (yolo / "labels" / "train" / "a.txt").write_text(f"1 {7 / 30} {5.5 / 20} {10 / 30} {5 / 20}\n")
    (yolo / "data.yaml").write_text("names: [car, dog]\n")
    for source in (folder, yolo):
        images = load_detection_images(str(source))
        label, box = images.objects[0].labels[0], images.objects[0].boxes[0]
        assert images.label_names[label] == "dog"
        assert np.allclose(box, [2, 3, 12, 8])
        assert images.open(0).size == (30, 20)
    with pytest.raises(ValueError, match=r"yolo has no image of the split 'validation': .*images "):
        load_detection_images(str(yolo), split="validation")
    with pytest.raises(ValueError, match="images='photos' is for a COCO file, and"):
        load_detection_images(str(folder), images="photos")
    entry["objects"] = {"bbox": [[2, 3, 10, 5]] * 2, "categories": [1, "dog"]}
    (folder / "metadata.jsonl").write_text(json.dumps(entry))
    with pytest.raises(ValueError, match="has numbers and names as categories"):
        load_detection_images(str(folder))


def test_areas_and_crowds_of_metadata_are_read_as_those_of_coco(tmp_path):
    noise(20, 30).save(tmp_path / "a.png")
    objects = {"bbox": [[2, 3, 10, 5], [0, 0, 9, 9]], "categories": ["dog", "dog"]}

    def read(**more):
        entry = {"file_name": "a.png", "objects": objects | more}
        (tmp_path / "metadata.jsonl").write_text(json.dumps(entry))
        return load_detection_images(str(tmp_path))

    images = read(area=[31.5, None], iscrowd=[0, True])
    assert images.objects[0].is_crowd.tolist() == [False, True]
    assert [e["area"] for e in coco_content(images)["annotations"]] == [31.5, 81]
    assert read().objects[0].is_crowd.tolist() == [False, False]
    with pytest.raises(ValueError, match="has 2 bbox and 1 area: give one each"):
        read(area=[31.5])
    with pytest.raises(ValueError, match="has area -1: give a number from 0 on"):
        read(area=[31.5, -1])


@pytest.mark.parametrize(("line", "told"), [("5 .5 .5 .1 .1", "class 5"), ("0 .5 x", "give class")])
def test_a_bad_yolo_line_is_named(tmp_path, line, told):
    for name in ("images", "labels"):
        (tmp_path / name).mkdir()
    Image.new("RGB", (9, 9)).save(tmp_path / "images" / "a.png")
    (tmp_path / "labels" / "a.txt").write_text(line)
    (tmp_path / "classes.txt").write_text("car\n")
    with pytest.raises(ValueError, match=told) as error:
        load_detection_images(str(tmp_path))
    assert "a.txt, line 1" in str(error.value)


@pytest.mark.parametrize(
    ("names", "told"),
    [
        ("{1: dog, 0: cat}", ("cat", "dog")),
        ("{1: cat, 2: dog}", r"keys of names are \[1, 2\]: number the classes from 0 to 1"),
        ("{a: cat, b: dog}", "keys of names are"),
    ],
)
def test_yolo_names_given_by_number_are_in_the_order_of_their_numbers(tmp_path, names, told):
    for name in ("images", "labels"):
        (tmp_path / name).mkdir()
    Image.new("RGB", (9, 9)).save(tmp_path / "images" / "a.png")
    (tmp_path / "labels" / "a.txt").write_text("0 .5 .5 .1 .1")
    (tmp_path / "data.yaml").write_text(f"names: {names}\n")
    if isinstance(told, tuple):
        assert load_detection_images(str(tmp_path)).label_names == told
    else:
        with pytest.raises(ValueError, match=told):
            load_detection_images(str(tmp_path))


def test_two_classes_of_yolo_have_two_names(tmp_path):
    for name in ("images", "labels"):
        (tmp_path / name).mkdir()
    Image.new("RGB", (9, 9)).save(tmp_path / "images" / "a.png")
    (tmp_path / "classes.txt").write_text("dog\ncar\ndog\n")
    with pytest.raises(ValueError, match=r"classes\.txt: class 'dog' is there twice"):
        load_detection_images(str(tmp_path))
    (tmp_path / "data.yaml").write_text("names: [dog, dog]\n")
    with pytest.raises(ValueError, match=r"data\.yaml: class 'dog' is there twice"):
        load_detection_images(str(tmp_path))


def test_each_line_of_classes_txt_is_a_name(tmp_path):
    for name in ("images", "labels"):
        (tmp_path / name).mkdir()
    Image.new("RGB", (9, 9)).save(tmp_path / "images" / "a.png")
    (tmp_path / "labels" / "a.txt").write_text("1 .5 .5 .1 .1")
    (tmp_path / "classes.txt").write_text("traffic light\ncar\n")
    images = load_detection_images(str(tmp_path))
    assert images.label_names == ("traffic light", "car")


def test_a_dataset_with_an_objects_column_is_read_as_the_hub_has_it(tmp_path, monkeypatch):
    import datasets

    features = datasets.Features(
        {
            "image": datasets.Image(),
            "objects": {
                "bbox": datasets.List(datasets.List(datasets.Value("float32"))),
                "category": datasets.List(datasets.ClassLabel(names=["car", "dog"])),
            },
        }
    )
    rows = datasets.Dataset.from_list(
        [{"image": noise(20, 30), "objects": {"bbox": [[2, 3, 10, 5]], "category": [1]}}],
        features=features,
    )
    monkeypatch.setattr(datasets, "load_dataset", lambda name, split: rows)
    images = load_detection_images("somebody/dogs")
    assert images.label_names == ("car", "dog")
    assert images.sizes.tolist() == [[20, 30]]
    assert images.objects[0].boxes.tolist() == [[2, 3, 12, 8]]
    assert images.open(0).size == (30, 20)
    damaged = [*rows.cast_column("image", datasets.Image(decode=False))]
    damaged[0]["image"] = {"bytes": b"no image", "path": None}
    rows = datasets.Dataset.from_list(damaged, features=features)
    with pytest.raises(ValueError, match=r"^somebody/dogs\[0\] is damaged or no image"):
        load_detection_images("somebody/dogs")


def test_sizes_in_columns_of_the_hub_are_compared_with_the_images(monkeypatch):
    import datasets

    image = {"height": datasets.Value("int64"), "width": datasets.Value("int64")}
    boxes = {"bbox": datasets.List(datasets.List(datasets.Value("float32")))}
    boxes["label"] = datasets.List(datasets.ClassLabel(names=["dog"]))
    features = datasets.Features({"image": datasets.Image(), "objects": boxes, **image})
    objects = {"bbox": [[2, 3, 10, 5]], "label": [0]}

    def read(height, width, objects=objects):
        row = {"image": noise(20, 30), "objects": objects, "height": height, "width": width}
        whole = {
            **row,
            "objects": {"bbox": [[0, 0, 1, 1]], "label": [0]},
            "height": 20,
            "width": 30,
        }
        rows = datasets.Dataset.from_list([whole, row], features=features)
        monkeypatch.setattr(datasets, "load_dataset", lambda name, split: rows)
        return load_detection_images("somebody/dogs")

    assert read(20, 30).sizes.tolist() == read(None, None).sizes.tolist() == [[20, 30]] * 2
    assert len(read(20, 30, None).objects[1]) == 0
    with pytest.raises(ValueError, match=r"dogs\[1\] has 30 x 20 .* annotations are of 20 x 30"):
        read(30, 20)


def test_digit_scenes_follow_from_seed_and_number_and_do_not_overlap():
    scenes = digit_scenes(seed=5)
    image, objects = pickle.loads(pickle.dumps(scenes)).read(3)
    assert image.tobytes() == scenes.read(3)[0].tobytes()
    assert image.tobytes() != scenes.read(4)[0].tobytes()
    assert image.tobytes() != digit_scenes(seed=6).read(3)[0].tobytes()
    counts = set()
    for number in range(60):
        _, objects = scenes.read(number)
        counts.add(len(objects))
        covered = np.zeros((64, 64), dtype=int)
        for left, top, right, bottom in objects.boxes.astype(int).tolist():
            assert 14 <= right - left == bottom - top <= 26
            covered[top:bottom, left:right] += 1
        assert covered.max() == 1
    assert counts == {1, 2, 3, 4}


def test_digit_scenes_keep_the_chosen_digits_only():
    scenes = digit_scenes(classes="89", seed=1)
    images = scenes.images(9)
    assert images.label_names == ("8", "9")
    every = load_images("digits", "first_half")
    chosen = every.subset(np.flatnonzero(every.labels >= 8))
    assert scenes.digits.names == chosen.names
    assert scenes.digits.labels.tolist() == (chosen.labels - 8).tolist()


def test_mirror_and_crop_move_boxes_with_their_pixels():
    """One white rectangle: its box must stay around it through every change."""
    for seed in range(20):
        image = Image.new("RGB", (50, 40))
        image.paste((255, 255, 255), (20, 12, 32, 26))
        changes = BoxAugmentation(flip=0.5, crop=0.7)
        generator = torch.Generator().manual_seed(seed)
        objects = objects_of([0], [[20, 12, 32, 26]])
        picture, moved = augmented(image, objects, (40, 50), changes, generator)
        bright = np.asarray(picture)[:, :, 0] > 127
        if not len(moved):
            continue
        rows, columns = np.nonzero(bright)
        around = [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]
        assert np.abs(moved.boxes[0] - around).max() <= 1  # resizing blurs the border


def test_a_crop_keeps_objects_by_their_center_by_hand():
    objects = objects_of([0, 1], [[0, 0, 10, 10], [8, 8, 20, 20]])
    kept = cropped(objects, (0, 0, 12, 12))
    assert kept.labels.tolist() == [0]
    assert cropped(objects, (4, 4, 15, 15)).boxes.tolist() == [[0, 0, 6, 6], [4, 4, 11, 11]]
    assert mirrored(objects, 30).boxes.tolist() == [[20, 0, 30, 10], [10, 8, 22, 20]]


def test_the_report_names_every_kind_of_problem():
    images = boxed_images(
        [
            [(0, 1, 1, 9, 9), (0, 1, 1, 9, 9)],
            [],
            [(0, 5, 5, 80, 20)],
            [(0, 5, 5, 5, 20)],
            [(0, place, 1, place + 2, 4) for place in range(6)],
        ]
    )
    told = detection_report(images, num_queries=5)
    for problem in (
        "1 images have more than 5 objects",
        "2 images have no object",
        "reach more than a pixel outside",
        "without area",
        "two boxes of one class",
        "classes without an object: 1 (b)",
    ):
        assert problem in told
    assert "at most 6 in one image" in told


def test_the_report_finds_shares_given_as_pixels_and_training_refuses_them():
    rows = [[(0, 0.1, 0.2, 0.5, 0.9), (1, 0.3, 0, 1, 1)], [(0, 0.9, 0.9, 1.2, 1.1)]]  # last: center
    told = "boxes are shares of the image, all numbers at most 1: multiply x and width by the width"
    assert told in detection_report(boxed_images(rows))
    with pytest.raises(ValueError, match=told):
        check_trainable(boxed_images(rows), num_queries=9)
    check_trainable(boxed_images([*rows, [(0, 3, 4, 20, 22)]]), num_queries=9)


def test_the_report_finds_corners_given_as_sides():
    generator = np.random.default_rng(3)
    rows = []
    for _ in range(30):
        left, top = generator.integers(1, 20, 2)
        right, bottom = left + generator.integers(5, 25), top + generator.integers(5, 18)
        rows.append([(0, left, top, left + right, top + bottom)])  # read as width and height
    assert "the file has corners" in detection_report(boxed_images(rows))
    right_way = boxed_images([[(0, 3, 4, 20, 22), (1, 25, 5, 45, 30)]])
    assert problems(right_way) == []


def test_relabelled_images_keep_names_and_ids():
    images = boxed_images([[(1, 1, 1, 9, 9)]], names=("a", "b")).relabelled(["b", "z", "a"])
    assert images.objects[0].labels.tolist() == [0]
    assert (images.category_ids[0], images.category_ids[2]) == (4, 1)
    assert len(set(images.category_ids)) == 3
    with pytest.raises(ValueError, match="has the class 'b'"):
        boxed_images([[(1, 1, 1, 9, 9)]]).relabelled(["a", "c"])
