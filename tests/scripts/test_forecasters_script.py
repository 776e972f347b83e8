"""The table of all forecasters: rows of every class, one row made once, the page."""

import pytest
from test_scene_scripts import script

from hf_vanilla.families import TASKS
from hf_vanilla.tracks import options as track_options
from hf_vanilla.training.recipe import read_recipe


@pytest.fixture
def table(monkeypatch):
    table = script("forecasters.py")
    monkeypatch.setattr(table, "TIMED_AGENTS", 20)
    monkeypatch.setitem(track_options.BUILT_IN_AGENTS, "junctions", 90)
    return table


def options(table, folder, **changes):
    return table.TableOptions(**{"folder": "eth", "output": str(folder), **changes})


def test_every_class_has_a_row_that_can_be_trained(table, tmp_path):
    asked = options(table, tmp_path, test_scene="hotel")
    for data in (*table.DATA, "outside"):
        rows = table.arguments_of_models(data, asked)
        recipes = [read_recipe([*row, "--output_dir", "x"]) for row in rows.values() if row]
        for recipe in recipes:
            if recipe.task != "joint_trajectories":
                assert recipe.config().num_modes == (6 if data == "junctions" else 20)
            assert recipe.data.test_scene == ("hotel" if data == "eth_ucy" else "none")
        forms = {getattr(recipe.data, "form", recipe.task) for recipe in recipes}
        assert forms == {
            *TASKS["trajectories"].forms,
            *TASKS["scene_trajectories"].forms,
            "joint_trajectories",
        }
        assert rows["constant velocity"] is None


def test_a_folder_may_have_spaces(table, tmp_path):
    asked = table.TableOptions(folder="my tracks", output=str(tmp_path / "my runs"))
    for data, folder in (("eth_ucy", "my tracks"), ("outside", f"{tmp_path}/my runs/others_zara1")):
        for row in filter(None, table.arguments_of_models(data, asked).values()):
            assert row[row.index("--dataset") + 1] == folder


def test_what_is_trained_is_shown_on_the_way(table):
    assert table.logger.name.startswith("hf_vanilla.")  # of which `run` shows the lines


def test_a_row_is_made_once_and_one_that_is_not_trained_is_left_out(table, tmp_path, monkeypatch):
    asked = options(table, tmp_path, train=False)
    table._test_windows.cache_clear()
    found = table.row("constant velocity", "junctions", asked)
    assert found["parameters"] == 0
    assert found["minFDE1"] > found["minADE1"] > 1
    monkeypatch.setattr(table, "measured", lambda *_: 1 / 0)
    assert table.row("constant velocity", "junctions", asked) == found
    assert table.rows_of("K modes", "junctions", asked, 3) == []


def test_a_row_of_another_test_scene_is_another_one(table, tmp_path):
    folders = {
        table.model_folder("K modes", data, options(table, tmp_path, test_scene=scene))
        for data in (*table.DATA, "outside")
        for scene in ("eth", "zara1")
    }
    assert len(folders) == 5  # junctions have no test scene


def test_the_third_table_trains_without_its_own_scenes_and_the_test_scene(table, tmp_path):
    asked = options(table, tmp_path)
    arguments = table.arguments_of_models("outside", asked)["early, full"]
    folder = arguments[arguments.index("--dataset") + 1]
    assert sorted(file.stem for file in (tmp_path / "others_zara1").iterdir()) == [
        "biwi_eth",
        "biwi_hotel",
        "crowds_zara02",
        "students001",
        "students003",
    ]
    assert folder == str(tmp_path / "others_zara1")


def test_a_second_stage_starts_from_the_first_of_its_seed(table, tmp_path):
    asked = options(table, tmp_path)
    for seed, folder in ((0, "AgentFormer_first_stage"), (2, "AgentFormer_first_stage_2")):
        arguments = table.arguments_of_models("eth_ucy", asked, seed)["AgentFormer, both stages"]
        assert arguments[-2:] == ["--first_stage", str(tmp_path / "eth_ucy_zara1" / folder)]


def test_the_best_rows_are_those_of_the_most_futures_that_all_have(table):
    both = {f"row {n}": [{"minADE6": 9 - n, "minADE20": n}] for n in range(7)}
    rows = {"one track": [{"minADE1": 0.1}], "missing": [], **both}
    assert table.best_rows(rows) == [f"row {n}" for n in range(5)]
    rows["without 20"] = [{"minADE6": 4.5}]
    assert table.best_rows(rows) == ["row 6", "row 5", "without 20", "row 4", "row 3"]


def test_several_seeds_are_a_mean_with_its_deviation(table):
    seeds = [{"minADE1": 1.0, "minFDE1": 3.0}, {"minADE1": 2.0, "minFDE1": 3.0}]
    text = table.markdown({"row": seeds}, {"ADE1": "top-scored", "single_ADE": "single"})
    assert text.splitlines()[-1] == "| row |" + " 1.500/3.000 ± 0.707/0.000 |" * 2


def test_a_page_gets_the_tables_between_its_marks(table, tmp_path, monkeypatch):
    page = tmp_path / "page.md"
    begin, end = (f"<!-- scripts/forecasters.py: {word} -->" for word in ("begin", "end"))
    page.write_text(f"before\n{begin}\nold\n{end}\nafter\n", encoding="utf-8")
    scores = {"minADE1": 1.5, "minFDE1": 2.25, "parameters": 1234, "cpu": 0.125}
    scores |= {"miss_rate": 0.5, "minJADE6": 3.0, "minJFDE6": 4.0, "joint_collision_share": 0.01}
    monkeypatch.setattr(table, "row", lambda name, *_: scores if name == "K modes" else None)
    scores |= {"minADE6": 0.5, "minFDE6": 1.0}
    scores |= {"crowds_zara03 minADE1": 0.25, "crowds_zara03 minFDE1": 0.75}
    table.table(options(table, tmp_path, page=str(page)))
    text = page.read_text(encoding="utf-8")
    three = " ± 0.000/0.000"
    row = (
        f"| K modes | 1,234 | - | 0.12 | 1.500/2.250{three} | 1.500/2.250{three} | "
        f"0.500/1.000{three} | - | 50.00 % | 3.000/4.000{three} | 1.00 % |"
    )
    assert text.count(row) == 2
    assert f"| K modes | 0.250/0.750{three} | - | - | - |" in text
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "old" not in text
    page.write_text("no marks", encoding="utf-8")
    monkeypatch.setattr(table, "row", lambda *_: pytest.fail("a row was made before"))
    with pytest.raises(ValueError, match="put the lines"):
        table.table(options(table, tmp_path, page=str(page)))
