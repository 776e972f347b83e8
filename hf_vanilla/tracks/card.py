"""The model card of a trajectory forecaster."""

from hf_vanilla.hub.card import PLACEHOLDER, REGISTERS, CardFacts

CARD = CardFacts(
    about="A forecaster of trajectories, from observed to future positions of an agent",
    use=f"""{REGISTERS}\
from transformers import AutoModelForTimeSeriesPrediction

model = AutoModelForTimeSeriesPrediction.from_pretrained("{PLACEHOLDER}")""",
    notes=f"`hf-vanilla forecast --model {PLACEHOLDER} --input FILE` reads a table of positions.",
    tags=("trajectory-prediction", "time-series-forecasting"),
)
