"""What a model returns is what BertViz draws.

BertViz is no dependency of the tests: it brings IPython and boto3, two dozen packages in all.
"""

import json
import re

import pytest
from transformers import AutoModelForSeq2SeqLM

bertviz = pytest.importorskip("bertviz", reason="needs bertviz: pip install bertviz")


@pytest.mark.parametrize("view", ["model_view", "head_view"])
def test_bertviz_shows_the_weights_a_model_returns(trained_run, trained, view):
    _, tokenizer = trained
    model = AutoModelForSeq2SeqLM.from_pretrained(trained_run, attn_implementation="eager")
    inputs = tokenizer("three one four", return_tensors="pt")
    written = model.generate(**inputs)
    outputs = model(**inputs, decoder_input_ids=written, output_attentions=True)
    source = tokenizer.convert_ids_to_tokens(inputs.input_ids[0])
    target = tokenizer.convert_ids_to_tokens(written[0])
    page = getattr(bertviz, view)(
        encoder_attention=outputs.encoder_attentions,
        decoder_attention=outputs.decoder_attentions,
        cross_attention=outputs.cross_attentions,
        encoder_tokens=source,
        decoder_tokens=target,
        html_action="return",
    )
    (told,) = re.findall(r"const params = (\{.*\});? *//|const params = (\{.*\})", page.data)
    drawn = {part["name"]: part for part in json.loads(told[0] or told[1])["attention"]}
    shapes = {"Encoder": (source, source), "Decoder": (target, target), "Cross": (target, source)}
    for name, (left, right) in shapes.items():
        weights = getattr(outputs, f"{name.lower()}_attentions")[0][0]
        assert drawn[name]["attn"][0] == weights.tolist()
        words = [[token.replace("Ġ", " ") for token in side] for side in (left, right)]
        assert [drawn[name]["left_text"], drawn[name]["right_text"]] == words
