"""The page of trajectories: what its script gets, and the page in headless Chromium."""

import asyncio
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from chromium import PHONE, drag_by_finger, needs_chromium, violations, visits
from numpy.testing import assert_allclose
from scene_models import scene_model

from hf_vanilla.app.worker import Worker
from hf_vanilla.models.configuration_vanilla_agentformer import VanillaAgentFormerConfig
from hf_vanilla.models.configuration_vanilla_tracks import VanillaTracksConfig
from hf_vanilla.models.modeling_vanilla_agentformer import VanillaForJointTrajectoryPrediction
from hf_vanilla.models.modeling_vanilla_tracks_forms import VanillaForMultimodalTrajectoryPrediction
from hf_vanilla.serve import Settings, served_by
from hf_vanilla.tracks import forecaster
from hf_vanilla.tracks.forecaster import predict
from hf_vanilla.tracks.page import TracksPage, path_in_steps

expect = pytest.importorskip("playwright.sync_api").expect
expect.set_options(timeout=60_000)

SIZES = {"observed_steps": 5, "predicted_steps": 3, "num_modes": 4, "d_model": 24}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    # wider than a phone: the page must not move when its name appears
    folder = tmp_path_factory.mktemp("a_forecaster_in_a_folder_with_a_very_long_name_" * 3)
    torch.manual_seed(0)
    heads = {"encoder_attention_heads": 3, "decoder_attention_heads": 2}
    config = VanillaTracksConfig(**SIZES, **heads, velocity_std=0.35)
    VanillaForMultimodalTrajectoryPrediction(config).save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def tracks(tmp_path_factory):
    """Two agents who walk for 12 steps; a third one is there once."""
    path = tmp_path_factory.mktemp("tracks") / "square.csv"
    rows = [f"{f},{name},{0.5 * f},{y}" for name, y in (("ada", 0), ("ben", 2)) for f in range(12)]
    path.write_text("\n".join(["frame,agent,x,y", *rows, "6,cid,1,1"]), encoding="utf-8")
    return str(path)


@pytest.fixture(scope="module")
def page(folder, tracks):
    return TracksPage(folder, tracks=tracks, frame_seconds=0.4)


def test_a_path_is_cut_into_equal_steps():
    corner = path_in_steps([[0, 0], [3, 0], [3, 1]], 5)
    assert_allclose(corner, [[0, 0], [1, 0], [2, 0], [3, 0], [3, 1]])


@pytest.mark.parametrize(
    ("points", "message"),
    [
        ([], "Draw a path"),
        ([[1, 1]], "Draw a path"),
        ([[1, 1], [1, 1]], "no length"),
        ([[0, 0], [float("nan"), 1]], "no length"),
        ("<b>", "Draw a path"),
        ([[0, 0]] * 5000, "Draw a path"),
    ],
)
def test_a_path_that_cannot_be_used_is_an_error_on_the_page(page, points, message):
    with pytest.raises(ValueError, match=message):
        page.draw(points)


def test_a_drawn_path_has_the_futures_of_the_model(page):
    (agent,) = page.draw([[0, 0], [2, 0]])["agents"]
    past = np.stack((np.linspace(0, 2, 5), np.zeros(5)), 1)
    tracks, probabilities = predict(page.model, past[None], np.ones((1, 5), bool))
    assert_allclose(agent["tracks"], tracks[0], atol=1e-3)
    assert_allclose(agent["probabilities"], probabilities[0], atol=1e-3)
    assert_allclose(agent["straight"], [[2.5, 0], [3, 0], [3.5, 0]], atol=1e-3)
    assert np.array(agent["looks"]).shape == (4, 5)  # modes, steps
    assert np.array(agent["looks"])[:, 0].tolist() == [0] * 4  # no displacement ends there
    assert_allclose(np.sum(agent["looks"], 1), 1, atol=5e-3)


def test_the_service_forecasts_the_agents_of_the_last_frame(folder, tracks, monkeypatch):
    passes = []
    monkeypatch.setattr(forecaster, "predict", lambda *past: passes.append(past) or predict(*past))
    settings = Settings(tracks=tracks, frame_seconds=0.4)
    forecast = served_by([folder], settings, Worker()).calls["/v1/forecast"]
    rows = [[frame, name, frame, y] for frame in range(9) for name, y in (("ada", 0), ("ben", 2))]
    found = asyncio.run(forecast({"rows": [*rows, [3, "cid", 1, 1]]}))
    assert (found["frame"], found["agents"]) == (8, ["ada", "ben"])
    assert len(passes) == 1  # not one for each frame of the rows
    past = np.stack((np.arange(4.0, 9), np.zeros(5)), 1)
    futures, _ = predict(TracksPage(folder).model, past[None], np.ones((1, 5), bool))
    assert_allclose(found["trajectories"][0], futures[0], atol=1e-3)
    for body, problem in (
        ({}, "rows is not a list"),
        ({"rows": [[1, "ada", 0]]}, "A row is not a list"),
        ({"rows": [[1, "ada", 0, float("nan")]]}, "finite"),
        ({"rows": rows, "frames_per_step": 0}, "frames_per_step is not a number"),
        ({"rows": rows, "frames_per_step": "2"}, "frames_per_step is text"),
        ({"rows": [["2", "ada", 0, 0]]}, "'2' is no number"),
        ({"rows": [[2, "ada", 0, "1"]]}, "'1' is no number"),
        ({"rows": [[True, "ada", 0, 0]]}, "True is no number"),
        ({"rows": [[0, None, 0, 0]]}, "agent None is no text and no number"),
        ({"rows": [[0, {"a": 1}, 0, 0]]}, "agent {'a': 1} is no text"),
        ({"rows": [[0.4, "ada", 0, 0]]}, r"frame 0\.4 is not a whole number"),
        ({"rows": [[10 * f, "ada", f, 0] for f in range(5)]}, "give another frames_per_step"),
    ):
        with pytest.raises(ValueError, match=problem):
            asyncio.run(forecast(body))
    assert asyncio.run(forecast({"rows": [[0, "ada", 0, 0], [1, "ben", 0, 0]]}))["agents"] == []


def test_a_frame_has_its_agents_with_what_really_came(page):
    agents = page.frame(0, 6)["agents"]
    assert [agent["name"] for agent in agents] == ["ada", "ben"]
    assert_allclose(agents[1]["truth"], [[0.5 * f, 2] for f in range(6, 10)])
    assert_allclose(agents[1]["past"], [[0.5 * f, 2] for f in range(2, 7)])
    assert page.frame(0, 99) == {"agents": []}


def test_tracks_may_have_columns_of_other_names(folder, tmp_path):
    rows = [f"{f},{0.5 * f},0,ada,{place}" for f in range(12) for place in ("north", "south")]
    path = tmp_path / "places.csv"
    path.write_text("\n".join(["frame,x,y,who,place", *rows]), encoding="utf-8")
    columns = "agent=who,scene=place"
    settings = Settings(tracks=str(path), frame_seconds=0.4, columns=columns)
    start = served_by([folder], settings, Worker()).views["start"]
    assert [scene["name"] for scene in start({})["scenes"]] == ["north", "south"]


def test_a_scene_with_a_map_has_its_lanes():
    page = TracksPage("constant_velocity", tracks="junctions")
    lanes = page.frame(3, 7)["lanes"]
    wanted = page.table.maps[3].points
    assert len(lanes) == len(wanted)
    assert_allclose(lanes[1], wanted[1], atol=1e-3)


def test_the_attention_of_an_agent_leaves_out_what_was_not_observed(page):
    (ada, _) = page.frame(0, 2)["agents"]
    assert len(ada["past"]) == 3
    assert np.array(ada["looks"]).shape == (4, 3)
    assert_allclose(np.sum(ada["looks"], 1), 1, atol=5e-3)


def test_settings_name_the_model_and_scenes_with_their_frames(page, folder):
    settings = page.start()
    assert settings["model"] == Path(folder).name  # visitors see no path of the server
    assert (settings["observed"], settings["predicted"], settings["unit"]) == (5, 3, "m")
    assert not settings["isJoint"] | settings["looksAtOthers"] | settings["hasLanes"]
    (scene,) = settings["scenes"]
    assert scene == {"number": 0, "name": "square", "first": 0, "last": 11, "step": 1}


@pytest.fixture(scope="module")
def joint_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("joint")
    heads = {"encoder_attention_heads": 3, "decoder_attention_heads": 2}
    model = VanillaForJointTrajectoryPrediction(VanillaAgentFormerConfig(**SIZES, **heads))
    model.save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def scene_page(joint_folder, tracks):
    return TracksPage(joint_folder, tracks=tracks, frame_seconds=0.4)


@pytest.mark.parametrize(
    ("config", "kind"),
    [
        (VanillaTracksConfig, VanillaForMultimodalTrajectoryPrediction),
        (VanillaAgentFormerConfig, VanillaForJointTrajectoryPrediction),
    ],
)
def test_a_model_in_another_unit_than_the_built_in_tracks_has_no_scenes(tmp_path, config, kind):
    kind(config(**{**SIZES, "d_model": 8}, unit="px")).save_pretrained(tmp_path)
    page = TracksPage(str(tmp_path))
    settings = page.start()
    assert (settings["unit"], settings["scenes"]) == ("px", [])
    assert settings["width"] > 0
    assert len(page.draw([[0, 0], [2, 0]])["agents"]) == 1


def test_models_of_scenes_have_the_page_of_tracks(joint_folder, tracks, tmp_path):
    scene_model("early full").float().save_pretrained(tmp_path)
    for model in (joint_folder, str(tmp_path)):
        served = served_by([model], Settings(tracks=tracks, frame_seconds=0.4), Worker())
        assert list(served.views) == ["start", "draw", "frame"]


def test_a_joint_model_shows_whom_each_agent_looks_at(scene_page):
    settings = scene_page.start()
    assert settings["isJoint"] & settings["looksAtOthers"]
    assert settings["width"] == pytest.approx(40 * 0.5)  # 40 steps of half a metre
    agents = scene_page.frame(0, 6)["agents"]
    assert [np.shape(agent["tracks"]) for agent in agents] == [(4, 3, 2)] * 2
    past = np.array([[agent["past"] for agent in agents]])
    model, last = scene_page.model, past[0, :, -1].mean(0)
    given = torch.tensor(past - last, dtype=torch.float32)
    with torch.no_grad():
        weights = model(given, output_attentions=True).attentions[-1][0].mean(0)  # (10, 10)
    for row, agent in enumerate(agents):
        of_last = weights[8 + row]  # time-major: step 4 of five, two agents
        assert_allclose(agent["looks"], [of_last[row::2].tolist()] * 4, atol=1e-3)
        assert_allclose(agent["others"], [of_last[0::2].sum(), of_last[1::2].sum()], atol=1e-3)
        assert sum(agent["others"]) == pytest.approx(1, abs=2e-3)
    (alone,) = scene_page.draw([[0, 0], [2, 0]])["agents"]
    assert alone["others"] == [1.0]


def test_a_model_that_draws_samples_answers_a_request_the_same_each_time(joint_folder, scene_page):
    forecast = served_by([joint_folder], Settings(), Worker()).calls["/v1/forecast"]
    rows = [[frame, "ada", frame, 0] for frame in range(5)]
    for ask in (
        lambda: asyncio.run(forecast({"rows": rows}))["trajectories"],
        lambda: scene_page.draw([[0, 0], [2, 0]])["agents"][0]["tracks"],
    ):
        assert ask() == ask()


def test_a_model_of_agents_and_lanes_shows_whom_an_agent_looks_at(tmp_path):
    sizes = {"observed_steps": 8, "max_others": 1, "max_lanes": 3}
    scene_model("early full", **sizes).float().save_pretrained(tmp_path)
    page = TracksPage(str(tmp_path), tracks="junctions")
    settings = page.start()
    assert not settings["isJoint"]
    assert settings["looksAtOthers"] & settings["hasLanes"]
    found = page.frame(3, 7)
    for row, agent in enumerate(found["agents"]):
        own, others, lanes = (np.array(agent[name]) for name in ("looks", "others", "lanes"))
        assert own.shape == (4, 8)
        assert others[row] == pytest.approx(own[0].sum(), abs=0.01)
        assert np.count_nonzero(np.delete(others, row)) == 1  # the nearest other
        assert lanes.shape == (len(found["lanes"]),)
        assert np.count_nonzero(lanes) <= 3
        assert others.sum() + lanes.sum() == pytest.approx(1, abs=0.02)


def test_a_model_without_weights_can_be_shown():
    page = TracksPage("constant_velocity")
    (agent,) = page.draw([[0, 0], [7, 0]])["agents"]
    assert agent["looks"] == []
    assert_allclose(agent["tracks"][0], agent["straight"])


# --- in a browser ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def visit(folder, tracks):
    def is_ready(tab):
        tab.locator(".tracks .about", has_text="5 observed steps").wait_for()

    with visits(folder, is_ready, tracks=tracks, frame_seconds=0.4) as visit:
        yield visit


@pytest.mark.slow
@needs_chromium
def test_draw_a_path_then_step_through_a_scene_by_mouse(visit):
    with visit() as tab:
        by_mouse(tab)


def by_mouse(shown):
    """Draw a path, choose futures, step through the scene, and show what really came."""
    expect(shown.locator(".hint")).to_contain_text("Arrow keys")
    assert not shown.get_by_text("A model of whole scenes").is_visible()
    assert not shown.get_by_text("Lines to other agents").is_visible()
    expect(shown.locator(".legend span:visible")).to_have_text(
        ["observed", re.compile("^ ?future"), "what really came", "constant velocity"]
    )
    box = shown.locator(".plane").bounding_box()
    shown.mouse.move(box["x"] + 100, box["y"] + 200)
    shown.mouse.down()
    for step in range(1, 11):
        shown.mouse.move(box["x"] + 100 + 15 * step, box["y"] + 200)
    shown.mouse.up()
    shown.locator(".future").nth(3).wait_for(state="attached")
    assert shown.locator(".future").count() == 4
    shown.locator(".modes [role=option]").nth(1).hover()
    shown.locator(".look").first.wait_for(state="attached")
    assert shown.locator(".look").count() == 4
    assert shown.locator(".future.chosen").get_attribute("data-mode") == "1"
    shown.locator(".modes [role=option]").nth(1).focus()
    shown.keyboard.press("ArrowRight")
    assert shown.locator(".future.chosen").get_attribute("data-mode") == "2"

    shown.locator("select.source").select_option(label="scene square")
    shown.locator(".agent").nth(1).wait_for(state="attached")
    assert shown.locator(".frame-number").inner_text() == "frame 4"
    shown.get_by_role("button", name="Next").click()
    assert shown.locator(".frame-number").inner_text() == "frame 5"
    # a straight line has no height, so Playwright calls it invisible
    display = "getComputedStyle(document.querySelector('.tracks .truth')).display"
    shown.wait_for_function(f"{display} == 'none'")
    shown.get_by_label("what really came").check()
    shown.wait_for_function(f"{display} == 'inline'")


@pytest.mark.slow
@needs_chromium
def test_a_click_draws_no_path(visit):
    asked = []
    with visit() as tab:
        tab.on("request", lambda request: asked.append(request.url))
        box = tab.locator(".plane").bounding_box()
        tab.mouse.click(box["x"] + 100, box["y"] + 200)
        expect(tab.get_by_role("alert")).to_contain_text("Draw a path with the pressed mouse")
        assert asked == []


@pytest.mark.slow
@needs_chromium
def test_an_answer_for_another_source_or_path_is_not_shown(visit):
    held = []
    with visit() as tab:
        tab.route(re.compile("/v1/view/(frame|draw)"), lambda route: held.append(route))
        for name, start in (("frame", "scene square"), ("draw", "draw a path")):
            with tab.expect_request(f"**/v1/view/{name}"):
                tab.locator("select.source").select_option(label=start)
                if name == "draw":
                    box = tab.locator(".plane").bounding_box()
                    tab.mouse.move(box["x"] + 100, box["y"] + 200)
                    tab.mouse.down()
                    tab.mouse.move(box["x"] + 200, box["y"] + 200)
                    tab.mouse.up()
            if name == "draw":
                tab.mouse.down()
                tab.mouse.move(box["x"] + 300, box["y"] + 200)
            else:
                tab.locator("select.source").select_option(label="draw a path")
            with tab.expect_response(f"**/v1/view/{name}"):
                held.pop().continue_()
            tab.evaluate("fetch('v1/view/none', { method: 'POST' }).then((found) => found.text())")
            assert tab.locator(".agent").count() == 0
        assert tab.locator(".drawing").count() == 1
        tab.locator(".plane").dispatch_event("pointercancel")
        tab.mouse.move(box["x"] + 100, box["y"] + 250)
        assert tab.locator(".drawing").count() == 0


def said(tab, text):
    expect(tab.locator(".said")).to_contain_text(text)


@pytest.mark.release
@needs_chromium
def test_the_page_works_by_keyboard(visit, page):
    ada, ben = page.frame(0, 5)["agents"]
    with visit() as tab:
        tab.locator("select.source").focus()
        tab.keyboard.press("ArrowDown")
        said(tab, "Agent ada, 1 of 2: 4 futures.")
        tab.get_by_role("button", name="Next").focus()
        tab.keyboard.press("Enter")
        expect(tab.locator(".frame-number")).to_have_text("frame 5")
        tab.locator(".agent").nth(1).wait_for(state="attached")
        tab.get_by_label("constant velocity").focus()
        tab.keyboard.press("Space")
        assert tab.get_by_label("constant velocity").is_checked()
        assert violations(tab, ".tracks") == []

        tab.locator(".plane").focus()
        for key, agent, mode in (
            ("ArrowDown", ada, 0),
            ("ArrowDown", ada, 1),
            ("ArrowUp", ada, 0),
            ("ArrowRight", ben, -1),
            ("ArrowRight", ben, -1),  # the last one
            ("ArrowDown", ben, 0),
        ):
            tab.keyboard.press(key)
            number = 1 + (agent is ben)
            if mode < 0:
                said(tab, f"Agent {agent['name']}, {number} of 2: 4 futures.")
                continue
            most = 1 + int(np.argmax(agent["looks"][mode]))
            odds = f"{100 * agent['probabilities'][mode]:.0f} %"
            said(tab, f"{agent['name']}, {number} of 2: future {mode + 1} of 4, {odds}. It looks")
            said(tab, f"most at step {most} of 5")
        assert tab.locator(".future.chosen").get_attribute("data-mode") == "0"

        tab.get_by_label("Frame").focus()
        tab.keyboard.press("Home")
        expect(tab.get_by_role("alert")).to_have_text("Nobody here has two observed steps.")


@pytest.mark.release
@needs_chromium
def test_the_page_works_by_touch_and_nothing_moves_on_a_slow_phone(visit):
    with visit(is_slow=True, **PHONE) as tab:
        box = tab.locator(".plane").bounding_box()
        drag_by_finger(tab, [(box["x"] + 50 + 8 * n, box["y"] + 90) for n in range(12)])
        said(tab, "Agent drawn, 1 of 1: 4 futures.")
        tab.locator(".modes [role=option]").nth(2).tap()
        said(tab, "future 3 of 4")
        tab.locator("select.source").select_option(label="scene square")
        said(tab, "Agent ada, 1 of 2")
        tab.get_by_role("button", name="Next").tap()
        expect(tab.locator(".frame-number")).to_have_text("frame 5")
        tab.get_by_label("what really came").tap()
        assert tab.get_by_label("what really came").is_checked()
        tab.locator(".agent").nth(1).wait_for(state="attached")
        at = tab.locator("g[data-agent='1'] .past").bounding_box()
        tab.touchscreen.tap(at["x"] + 3, at["y"] - 15)  # beside the track: a finger is wide
        said(tab, "Agent ben, 2 of 2: 4 futures.")
        assert violations(tab, ".tracks") == []
