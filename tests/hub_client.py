"""What people do with the Hub, each in a process of its own: `hub_client.py ROLE OUTPUT ...`.

Every role writes what it saw to OUTPUT as JSON. Imports stand in the roles, because for some of
them a library must not be there.
"""

import copy
import json
import sys
from pathlib import Path

SENTENCES = ["one two", "nine eight seven </s> three", "four"]
DECODING = ("num_beams", "length_penalty", "length_penalty_form", "max_tokens_beyond_source")


def described(model, tokenizer):
    """All that must be the same after a journey; float32 survives JSON exactly."""
    import torch

    torch.set_num_threads(1)
    model = model.eval()
    batch = tokenizer(SENTENCES, padding=True, return_tensors="pt")
    with torch.no_grad():
        outputs = model(**batch, labels=batch["input_ids"])
    generated = model.generate(**batch, output_scores=True, return_dict_in_generate=True)
    return {
        "ids": batch["input_ids"].tolist(),
        "logits": outputs.logits.double().tolist(),
        "loss": outputs.loss.item(),
        "sequences": generated.sequences.tolist(),
        "translations": tokenizer.batch_decode(generated.sequences, skip_special_tokens=True),
        "scores": generated.sequences_scores.tolist(),
        "decoding": {name: getattr(model.generation_config, name, None) for name in DECODING},
    }


def pulled(place, **told):
    from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

    model = AutoModelForSeq2SeqLM.from_pretrained(place, **told)
    return model, AutoTokenizer.from_pretrained(place, **told)


def refusal(action, *arguments, **told):
    """The class and the text of the error that must come."""
    try:
        action(*arguments, **told)
    except Exception as error:
        return [type(error).__name__, str(error)]
    return None


def push(folder, repo_id, coded_repo_id):
    """Model, tokenizer and config; a changed model on a branch; the same with its code."""
    import torch

    import hf_vanilla

    model, tokenizer = pulled(folder)
    found = {"main": described(model, tokenizer), "config": model.config.to_dict()}
    for part in (model, tokenizer):
        part.push_to_hub(repo_id)
    model.config.push_to_hub(repo_id + "-config")
    doubled = copy.deepcopy(model)
    with torch.no_grad():
        doubled.lm_head.weight.mul_(2.0)
    doubled.push_to_hub(repo_id, revision="doubled")
    hf_vanilla.VanillaConfig.register_for_auto_class()
    hf_vanilla.VanillaTokenizer.register_for_auto_class("AutoTokenizer")
    model.register_for_auto_class("AutoModelForSeq2SeqLM")
    for part in (model, tokenizer):
        part.push_to_hub(coded_repo_id)
    return {**found, "branch": described(doubled, tokenizer)}


def pull(repo_id, *places):
    """Everything at `repo_id` and its branch, and what `places` hold."""
    from transformers import AutoConfig

    import hf_vanilla  # noqa: F401 - registers the model

    found = {place: described(*pulled(place)) for place in (repo_id, *places)}
    branch = pulled(repo_id, revision="doubled")[0], pulled(repo_id)[1]
    found["config"] = AutoConfig.from_pretrained(repo_id + "-config").to_dict()
    return {**found, "branch": described(*branch)}


def visit(repo_id, coded_repo_id, private_repo_id, scripted_repo_id):
    """Without our package and without a token."""
    import torch
    from transformers import AutoModel, AutoTokenizer, pipeline

    alone = AutoTokenizer.from_pretrained(repo_id)
    model, tokenizer = pulled(coded_repo_id, trust_remote_code=True)
    found = {
        "alone": {
            "ids": alone(SENTENCES, padding=True).input_ids,
            "module": type(alone).__module__,
        },
        "private": refusal(pulled, private_repo_id),
        "not_trusted": refusal(pulled, repo_id),
        "coded": described(model, tokenizer),
        "modules": [type(part).__module__ for part in (model, model.config, tokenizer)],
    }
    scripted, told = pulled(scripted_repo_id, revision="v1", trust_remote_code=True)
    found["scripted"] = described(scripted, told)
    bare = AutoModel.from_pretrained(scripted_repo_id, revision="v1", trust_remote_code=True)
    batch = tokenizer(SENTENCES, padding=True, return_tensors="pt")
    with torch.no_grad():
        states = bare(**batch, decoder_input_ids=batch["input_ids"]).last_hidden_state
        inner = scripted.model(**batch, decoder_input_ids=batch["input_ids"]).last_hidden_state
    found["bare"] = [type(bare).__name__, torch.equal(states, inner)]
    told = {"revision": "v1", "trust_remote_code": True}
    found["translations"] = {
        place: [
            record["translation_text"] for record in pipeline("translation", **where)(SENTENCES)
        ]
        for place, where in (
            ("coded", {"model": coded_repo_id, "trust_remote_code": True}),
            ("scripted", {"model": scripted_repo_id, **told}),
        )
    }
    found["pipeline_not_trusted"] = refusal(
        pipeline, "translation", model=coded_repo_id, trust_remote_code=False
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    losses = []
    for _ in range(2):
        loss = model(**batch, labels=batch["input_ids"]).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return {**found, "losses": losses}


def miss(repo_id, empty_cache):
    """Where nobody answers: first with what an earlier process left, then without."""
    import hf_vanilla  # noqa: F401 - registers the model

    warm = described(*pulled(repo_id))
    return {"warm": warm, "cold": refusal(pulled, repo_id, cache_dir=empty_cache)}


def finetune(folder, output, repo_id):
    """Two steps of the Trainer, which pushes at each of them and at the end."""
    from small_run import digit_pairs
    from transformers import DataCollatorForSeq2Seq, Seq2SeqTrainer, Seq2SeqTrainingArguments

    import hf_vanilla  # noqa: F401 - registers the model

    model, tokenizer = pulled(folder)
    sources, targets = (list(side) for side in zip(*digit_pairs()[:12], strict=True))
    encoded = tokenizer(sources, text_target=targets)
    rows = [dict(zip(encoded, row, strict=True)) for row in zip(*encoded.values(), strict=True)]
    arguments = Seq2SeqTrainingArguments(
        output, push_to_hub=True, hub_model_id=repo_id, max_steps=2, save_steps=1, use_cpu=True,
        learning_rate=0.01, per_device_train_batch_size=6, report_to="none", disable_tqdm=True,
    )  # fmt: skip
    collate = DataCollatorForSeq2Seq(tokenizer, model=model)
    trainer = Seq2SeqTrainer(
        model, arguments, collate, train_dataset=rows, processing_class=tokenizer
    )
    before = described(model, tokenizer)
    trainer.train()
    trainer.push_to_hub()
    return {"before": before, "after": described(model, tokenizer)}


def manage(repo_id):
    """The life of a repository that holds one small file."""
    from huggingface_hub import HfApi, ModelCard

    api = HfApi()
    found = {"whoami": api.whoami()["name"], "created": api.create_repo(repo_id).repo_id}
    found["again"] = refusal(api.create_repo, repo_id)
    found["exists"] = api.create_repo(repo_id, exist_ok=True).repo_id
    commits = [
        api.upload_file(path_or_fileobj=text, path_in_repo=path, repo_id=repo_id).oid
        for path, text in (("folder/a", b"one"), ("b", b"two"), ("folder/a", b"one more"))
    ]
    found["stale"] = refusal(api.delete_file, "b", repo_id, parent_commit=commits[0])
    api.delete_file("b", repo_id)
    found["files"] = [
        sorted(api.list_repo_files(repo_id, revision=name)) for name in (commits[1], "main")
    ]
    found["sizes"] = [file.size for file in api.get_paths_info(repo_id, ["folder/a", "b"])]
    found["folder"] = [item.path for item in api.list_repo_tree(repo_id, "folder")]
    found["branches"] = [branch.name for branch in api.list_repo_refs(repo_id).branches]
    found["no_revision"] = refusal(api.repo_info, repo_id, revision="nowhere")
    found["no_entry"] = refusal(api.hf_hub_download, repo_id, "nothing")
    found["no_card"] = refusal(ModelCard("---\nlicense: [1, 2]\n---\n").push_to_hub, repo_id)
    found["no_token"] = refusal(HfApi(token=False).create_repo, repo_id + "-2")
    api.delete_repo(repo_id)
    return {**found, "deleted": refusal(api.repo_info, repo_id)}


if __name__ == "__main__":
    roles = {role.__name__: role for role in (push, pull, visit, miss, finetune, manage)}
    role, output, *rest = sys.argv[1:]
    Path(output).write_text(json.dumps(roles[role](*rest)), encoding="utf-8")
