"""docs/code.md lists the private names of transformers in use, and each one exists."""

import inspect
import re
from pathlib import Path

import transformers

import hf_vanilla

PAGE = Path(__file__).resolve().parents[2] / "docs" / "code.md"
ROWS = [line for line in PAGE.read_text("utf-8").splitlines() if re.match(r"\| `\w+\._", line)]
LISTED = [(re.findall(r"\w+", row)[0], name) for row in ROWS for name in re.findall(r"\b_\w+", row)]
# every model or pipeline defines these, as transformers' guides say; the first is Python's
NOT_LISTED = re.compile(
    r"_(abc|supports|can|keys_to|no_split|tied_weights|tp_plan|init_weights|sanitize|forward|load)"
)


def test_a_listed_private_name_exists_in_transformers():
    assert len(LISTED) > 12
    for owner, name in LISTED:
        sources = [
            inspect.getsource(inspect.getmodule(base))
            for base in getattr(transformers, owner).__mro__
            if base.__module__.startswith("transformers")
        ]
        assert any(re.search(rf"\b{name}\b", source) for source in sources), (owner, name)


def test_every_overridden_private_name_is_listed():
    public = [getattr(hf_vanilla, name) for name in hf_vanilla.__all__]
    classes = {base for c in public if inspect.isclass(c) for base in c.__mro__}
    own = {c for c in classes if c.__module__.startswith("hf_vanilla")}
    theirs = {name for c in classes - own for name in vars(c) if re.match(r"_[a-z]", name)}
    overridden = {name for c in own for name in vars(c)} & theirs
    assert {n for n in overridden if not NOT_LISTED.match(n)} <= {name for _, name in LISTED}
