"""Run by torchrun on two processes: a model sharded by FSDP2 is gathered, saved and measured whole.

On a CPU accelerate would replace FSDP by DDP without a word, so torch's own `fully_shard` is used.
"""

import sys
from pathlib import Path

import torch
from accelerate import Accelerator
from safetensors.torch import load_file, save_file
from torch.distributed.fsdp import fully_shard

from hf_vanilla import VanillaConfig, VanillaForConditionalGeneration
from hf_vanilla.training.checkpointing import is_sharded, load_weights, whole_model, whole_weights

SIZES = {"vocab_size": 43, "d_model": 12, "dropout": 0.0, "max_position_embeddings": 31}
SIZES |= {"encoder_layers": 2, "encoder_attention_heads": 3, "encoder_ffn_dim": 29}
SIZES |= {"decoder_layers": 3, "decoder_attention_heads": 2, "decoder_ffn_dim": 31}


def new_model():
    torch.manual_seed(3)
    return VanillaForConditionalGeneration(VanillaConfig(**SIZES))


def one_step(model, rows):
    """An update by half of the batch on each process, or by all of it on one."""
    torch.manual_seed(5)
    batch = torch.randint(3, 43, (4, 7)), torch.randint(3, 43, (4, 5))
    ids, labels = (part[rows] for part in batch)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for _ in range(3):
        model(input_ids=ids, labels=labels).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return model


def main(folder):
    accelerator = Accelerator(cpu=True)
    assert accelerator.num_processes == 2
    rank = accelerator.process_index
    sharded = new_model()
    assert not is_sharded(sharded)
    assert whole_model(sharded) is sharded
    for layer in (*sharded.model.encoder.layers, *sharded.model.decoder.layers):
        fully_shard(layer)
    fully_shard(sharded)
    assert is_sharded(sharded)
    one_step(sharded.train(), slice(2 * rank, 2 * rank + 2))
    alone = one_step(new_model().train(), slice(None))

    weights = whole_weights(sharded)
    if accelerator.is_main_process:
        save_file(weights, folder / "model.safetensors")
    accelerator.wait_for_everyone()
    loaded = new_model()
    load_weights(loaded, load_file(folder / "model.safetensors"))
    copy = whole_model(sharded).eval()
    assert not is_sharded(copy)
    expected = alone.state_dict()
    for model in (loaded, copy):
        for name, weight in model.state_dict().items():
            # gradients are float32 sums in another order
            torch.testing.assert_close(weight, expected[name], rtol=1e-5, atol=1e-6)
    # each process at its own pace, as in validation: shards would wait for each other forever
    for _ in range(1 + rank):
        copy.generate(torch.tensor([[5, 6, 7, 1]]), max_new_tokens=3, num_beams=2)
    # the sharded model itself, in step
    source = torch.tensor([[5, 6, 7, 1], [9, 4, 1, 1]])
    given = {"max_new_tokens": 5, "num_beams": 2}
    found = sharded.eval().generate(source, synced_gpus=True, **given)
    assert torch.equal(found, copy.generate(source, **given))
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        print("whole")  # noqa: T201 - the test reads it
    accelerator.end_training()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
