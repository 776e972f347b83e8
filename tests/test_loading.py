"""The one way a saved model is loaded: it runs no code, takes whole models, and says why not."""

import json
import os
import subprocess
import sys


def test_text_on_stdin_never_consents_to_running_the_code_of_a_model(tmp_path):
    evil, mark = tmp_path / "evil", tmp_path / "ran"
    evil.mkdir()
    classes = {"AutoConfig": "nice.C", "AutoModelForSeq2SeqLM": "nice.M"}
    (evil / "config.json").write_text(json.dumps({"model_type": "nice", "auto_map": classes}))
    (evil / "nice.py").write_text(f"open({str(mark)!r}, 'w')")
    done = subprocess.run(
        [sys.executable, "-m", "hf_vanilla", "translate", "--model", str(evil)],
        input="Hello.\n1\ny\nyes\n",
        capture_output=True,
        text=True,
        env={**os.environ, "HF_MODULES_CACHE": str(tmp_path / "modules")},
        check=False,
    )
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert "evil cannot be loaded: it needs code of its own" in done.stderr
    assert not mark.exists()
