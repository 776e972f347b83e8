# %% [markdown]
# # The paper in code
#
# This notebook goes through ["Attention Is All You Need"](https://arxiv.org/abs/1706.03762) section
# by section. Each section has the formula, the reason for it, the code of this package that
# computes it, a check against a computation by hand, and exercises. At the end you have trained a
# model, decoded with it, and looked at the attention of its heads. The notebook runs in one or two
# minutes on a laptop without a GPU; plan one to two hours for reading and exercises.
#
# **Exercises** are cells that begin with `exercise_1 = None`. Replace `None` by your answer and run
# the cell: it prints "right", or fails with a hint. With `None`, the cell does nothing.
#
# Letters in shapes: B batch, S source, T target, L any length, D `d_model`, H heads, K head width,
# V vocabulary.

# %%
import copy
import html
import math
import random
import warnings

warnings.filterwarnings("ignore", message="IProgress")  # about progress bars

import matplotlib.pyplot as plt
import torch
from IPython.display import HTML
from torch import nn
from torch.testing import assert_close
from transformers import DataCollatorForSeq2Seq
from transformers.utils.logging import disable_progress_bar

from hf_vanilla import (
    VanillaConfig,
    VanillaForConditionalGeneration,
    demo_model,
    inverse_sqrt_schedule,
    load_translator,
    paper_adam,
    train_tokenizer,
    translate,
)
from hf_vanilla.data.corpus import number_words
from hf_vanilla.models.attention_vanilla import VanillaAttention, eager_attention
from hf_vanilla.models.kernels_vanilla import VanillaDropout
from hf_vanilla.models.layers_vanilla import VanillaEncoderLayer
from hf_vanilla.models.loss_vanilla import label_smoothed_loss
from hf_vanilla.models.positions_vanilla import sinusoid
from hf_vanilla.text.attentions import attentions
from hf_vanilla.text.n_best import best_translations

disable_progress_bar()  # of loading
torch.manual_seed(0)
torch.set_num_threads(1)

# %% [markdown]
# ## What the model does
#
# The package contains a small trained model: a million weights, English number words to German
# ones. It reads the whole sentence at once and writes the translation token by token. These are its
# four best translations of one sentence, with their scores; the best one is right.

# %%
demo, demo_tokenizer = load_translator(demo_model())
sentence = "seven hundred forty-two thousand three hundred nineteen"
hypotheses = best_translations(demo, demo_tokenizer, sentence, num_beams=4)
for hypothesis in hypotheses:
    print(f"{hypothesis.score:8.3f}  {hypothesis.text}")
assert hypotheses[0].text == number_words(742_319)["target"]

# %% [markdown]
# German writes "two" before "forty", so the model cannot translate word by word. Each token that it
# writes is a weighted mean over all tokens that it read, and the weights are computed from the
# tokens themselves: this is attention. Open a head below to see its weights in percent: a row is a
# token being written, a column a token that it attends to. In the last layer the row of "zwei" has
# its weight on "two", and the next row jumps back to "forty".

# %%
seen = attentions(demo, demo_tokenizer, sentence)


def as_table(weights, rows, columns):
    """The weights `(T, S)` of one head in percent: a larger one is a stronger blue."""
    lines = ["<tr><th></th>" + "".join(f"<th>{html.escape(name)}</th>" for name in columns)]
    for name, row in zip(rows, weights.tolist(), strict=True):
        cells = (
            f'<td style="background: rgba(96, 165, 250, {weight:.2f})">{100 * weight:.0f}</td>'
            for weight in row
        )
        lines.append(f"<tr><th>{html.escape(name)}</th>{''.join(cells)}")
    return f"<table>{'</tr>'.join(lines)}</tr></table>"


def attention_by_head(seen):
    """A table of cross-attention for each head, and for their mean, that opens at a click."""
    parts = []
    for layer, of_heads in enumerate(seen.cross):  # (H, T, S)
        shown = {"mean": of_heads.mean(0)} | {f"head {h}": each for h, each in enumerate(of_heads)}
        for name, weights in shown.items():
            is_open = " open" if name == "mean" and layer == len(seen.cross) - 1 else ""
            table = as_table(weights, seen.target, seen.source)
            title = f"<summary>layer {layer}, {name}</summary>"
            parts.append(f"<details{is_open}>{title}{table}</details>")
    return HTML("".join(parts))


attention_by_head(seen)

# %% [markdown]
# The other model of the package translates sentences about software. In which heads does a German
# noun attend to the English one, wherever it stands?

# %%
sentence = "Enter the name of the file that you want to open."
attention_by_head(attentions(*load_translator("help-en-de"), sentence))

# %% [markdown]
# ## The architecture (3.1)
#
# This is Figure 1 of the paper with the widths of its base model. The encoder,
# on the left, turns the source into one vector per token. The decoder, on the right, reads these
# vectors and the tokens that it has written, and predicts the next token.
#
# Why attention and no recurrent network (4)? In a recurrent network, a signal between two tokens
# passes through all tokens between them, one step after the other. With attention, any two tokens
# are one step apart, and all tokens of a sentence are computed at the same time. The price is that
# the number of weights grows with the square of the length. The sections below build the parts of
# the figure from the bottom to the top.
#
# ![Figure 1 of the paper with the widths of the base model](../pictures/architecture.png)

# %% [markdown]
# ## Positions (3.5)
#
# Attention treats its input as a set of tokens without an order. The model therefore adds a vector
# that depends on the position to each embedding:
#
# $$PE_{(pos,\,2i)} = \sin\left(pos / 10000^{2i/D}\right)$$
#
# $$PE_{(pos,\,2i+1)} = \cos\left(pos / 10000^{2i/D}\right)$$

# %%
table = sinusoid(torch.arange(64), 128)  # (positions, D)

# by hand: position 7, channels 6 and 7, so i = 3
angle = 7 / 10000 ** (2 * 3 / 128)
assert math.isclose(table[7, 6], math.sin(angle))
assert math.isclose(table[7, 7], math.cos(angle))

figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
left.imshow(table.T, aspect="auto", cmap="RdBu")
left.set(title="the table", xlabel="position", ylabel="channel")
image = right.imshow(table @ table.T, cmap="viridis")
right.set(title="dot products of positions", xlabel="position", ylabel="position")
figure.colorbar(image)
plt.show()

# %% [markdown]
# Left: low channels have high frequencies, high channels have low frequencies. Right: each diagonal
# has one color, because the dot product of two positions depends only on their distance.
#
# **Exercise 1.** After how many positions does the slowest channel pair of D = 512 repeat?

# %% tags=["exercise"]
exercise_1 = None  # a number

if exercise_1 is not None:
    assert math.isclose(exercise_1, 60611.4, rel_tol=1e-4), "2 pi over the frequency where 2i = 510"
    print("right")

# %% [markdown]
# The authors chose sinusoids because the vector of position pos + k is a *linear* function of the
# vector of position pos.
#
# **Exercise 2.** Which matrix maps channels 6 and 7 of any position to those of the position five
# later?

# %% tags=["exercise"]
omega = 10000 ** (-2 * 3 / 128)  # frequency of channels 6 and 7
exercise_2 = None  # a 2 x 2 tensor

if exercise_2 is not None:
    moved = table[:-5, 6:8] @ exercise_2.double().T
    hint = "sin(a + b) = sin a cos b + cos a sin b: a rotation"
    assert_close(moved, table[5:, 6:8], rtol=0, atol=1e-5, msg=hint)
    print("right")

# %% [markdown]
# ## Scaled dot-product attention (3.2.1)
#
# $$\mathrm{Attention}(Q, K, V) = \mathrm{softmax}\left(\frac{Q K^T}{\sqrt{d_k}}\right) V$$
#
# Each query is compared with all keys. The result is a weighted mean of the values; a better match
# gives a larger weight. `eager_attention` computes this formula, with masks and dropout. Training
# uses faster kernels, and tests compare them with this one.

# %%
query = torch.tensor([[[[2.0, 0.0, 0.0, 0.0]]]])  # (B, H, T, K) = (1, 1, 1, 4)
key = torch.tensor([[[[1.0, 0.0, 0.0, 0.0], [0.0, 1.0, 0.0, 0.0]]]])  # (B, H, S, K): two keys
value = torch.tensor([[[[10.0], [20.0]]]])  # (B, H, S, 1)
module = nn.Identity().eval()  # eager_attention reads only its training mode, for dropout

mean, weights = eager_attention(module, query, key, value, attention_mask=None)

# by hand: scores 2 and 0, divided by sqrt(4); softmax of 1 and 0; mean of 10 and 20
first = math.e / (math.e + 1)
assert_close(weights.flatten(), torch.tensor([first, 1 - first]))
assert_close(mean.item(), 10 * first + 20 * (1 - first))
print(f"weights {weights.flatten().tolist()}, mean {mean.item():.3f}")

# %% [markdown]
# Why divide by the square root? The dot products of random vectors grow with their width. A softmax
# over large scores is close to one-hot, and its gradient is close to zero.

# %%
widths = [4, 16, 64, 256, 1024]
largest = {"scaled": [], "unscaled": []}
for width in widths:
    q, k = torch.randn(1, 1, 200, width), torch.randn(1, 1, 50, width)
    for name, scaling in (("scaled", width**-0.5), ("unscaled", 1.0)):
        _, random_weights = eager_attention(module, q, k, k, None, scaling=scaling)
        largest[name].append(random_weights.max(dim=-1).values.mean().item())

figure, axes = plt.subplots(figsize=(5, 3), layout="constrained")
for name, means in largest.items():
    axes.semilogx(widths, means, "o-", base=2, label=name)
axes.set(xlabel="width of a head", ylabel="largest of 50 weights, mean", ylim=(0, 1))
axes.legend()
plt.show()

# %% [markdown]
# **Exercise 3.** What is the standard deviation of $q \cdot k$ if both have 64 independent
# components from N(0, 1)?

# %% tags=["exercise"]
exercise_3 = None  # a number

if exercise_3 is not None:
    assert exercise_3 == 8, "variances of independent products add up; each is 1"
    print("right")

# %% [markdown]
# ## Multi-head attention (3.2.2)
#
# $$\mathrm{head}_i = \mathrm{Attention}(Q W_i^Q,\; K W_i^K,\; V W_i^V)$$
#
# $$\mathrm{MultiHead}(Q, K, V) = \mathrm{Concat}(\mathrm{head}_1, \ldots, \mathrm{head}_h)\, W^O$$
#
# Why several heads? A single head computes one weighted mean, in which all that a token needs from
# others is mixed. Several heads compute several means, each in its own space of K dimensions, so
# one can attend to the previous token while another attends elsewhere. `VanillaAttention` stores
# the matrices of all heads in one linear layer.

# %%
config = VanillaConfig(
    vocab_size=300,
    d_model=12,
    encoder_layers=1,
    decoder_layers=1,
    encoder_attention_heads=3,
    decoder_attention_heads=3,
    encoder_ffn_dim=20,
    decoder_ffn_dim=20,
    attn_implementation="eager",
)
attention = VanillaAttention(config, num_heads=3).eval()
hidden_states = torch.randn(1, 5, 12)  # (B, L, D)
attended, weights = attention(hidden_states, hidden_states, hidden_states)

# by hand: each head uses 4 rows of each of the three matrices
heads = []
for rows in (slice(0, 4), slice(4, 8), slice(8, 12)):
    q = hidden_states[0] @ attention.q_proj.weight[rows].T  # (L, K)
    k = hidden_states[0] @ attention.k_proj.weight[rows].T
    v = hidden_states[0] @ attention.v_proj.weight[rows].T
    heads.append((q @ k.T / math.sqrt(4)).softmax(dim=-1) @ v)
assert_close(attended[0], torch.cat(heads, dim=-1) @ attention.out_proj.weight.T)
print("three heads, (B, H, T, S):", tuple(weights.shape))

# %% [markdown]
# **Exercise 4.** How many weights does multi-head attention have with D = 512 and 8 heads, and how
# many with 1 head?

# %% tags=["exercise"]
exercise_4 = None  # a pair of numbers

if exercise_4 is not None:
    assert tuple(exercise_4) == (4 * 512 * 512,) * 2, "d_k is D / h, so h cancels out; no biases"
    print("right")

# %% [markdown]
# ## Masks (3.2.3)
#
# Some keys must not be used: padding and, in the decoder, all later tokens. In this package, True
# in a boolean mask means that the query **may** attend to the key.

# %%
is_real = torch.tensor([True, True, True, True, False, False])  # two padding tokens
padding = is_real.expand(6, 6)  # (T, S): no query may attend to padding
causal = torch.ones(6, 6, dtype=torch.bool).tril()  # query t may attend to keys 0 to t
may_attend = (padding & causal)[None, None]  # (B, 1, T, S)

states = torch.randn(1, 1, 6, 4)
_, weights = eager_attention(module, states, states, states, may_attend)
assert weights[~may_attend].eq(0).all()
assert_close(weights.sum(dim=-1), torch.ones(1, 1, 6))

figure, panels = plt.subplots(1, 4, figsize=(9, 2.6), layout="constrained")
names = ("padding", "causal", "both", "weights with both masks")
for axes, name, matrix in zip(
    panels, names, (padding, causal, may_attend[0, 0], weights[0, 0]), strict=True
):
    axes.imshow(matrix.float(), cmap="Blues", vmin=0, vmax=1)
    axes.set(title=name, xlabel="key", ylabel="query")
plt.show()

# %% [markdown]
# The model creates these masks: the padding mask from `attention_mask`, the causal mask in the
# decoder. Their effect is visible in the logits: padding does not change them, and no position
# depends on a later token.

# %%
model = VanillaForConditionalGeneration(config).eval()
source = torch.tensor([[7, 8, 9, 1]])
padded = torch.tensor([[7, 8, 9, 1, 0, 0]])
target = torch.tensor([[0, 21, 22, 23]])
changed = torch.tensor([[0, 21, 22, 99]])  # another last token

logits = model(input_ids=source, decoder_input_ids=target).logits
mask = torch.tensor([[1, 1, 1, 1, 0, 0]])
of_padded = model(input_ids=padded, attention_mask=mask, decoder_input_ids=target).logits
of_changed = model(input_ids=source, decoder_input_ids=changed).logits
assert_close(of_padded, logits)
assert_close(of_changed[:, :3], logits[:, :3])
print("largest change at the last position", (of_changed - logits)[0, 3].abs().max().item())

# %% [markdown]
# **Exercise 5.** Create a mask for six tokens in which each query may attend to itself and to the
# two tokens before it.

# %% tags=["exercise"]
exercise_5 = None  # a bool tensor (6, 6)

if exercise_5 is not None:
    allowed = [[0 <= query - key <= 2 for key in range(6)] for query in range(6)]
    assert exercise_5.tolist() == allowed, (
        "tril removes later keys; triu(-2) removes keys more than 2 before"
    )
    print("right")

# %% [markdown]
# ## A layer (3.1, 3.3, 5.4)
#
# $$\mathrm{LayerNorm}(x + \mathrm{Dropout}(\mathrm{Sublayer}(x)))$$
#
# Each sublayer adds its output to its input, and the norm comes *after* the sum: this is post-norm.
# Most later models apply the norm before the sublayer (pre-norm). An encoder layer has two
# sublayers: attention and a network that is applied to each token alone.
#
# Why add the input? The gradient reaches every layer through the sums, without passing through a
# sublayer. Why a norm? It keeps the sums from growing from layer to layer. Attention only mixes
# tokens; the second sublayer is where a token's vector is transformed:
#
# $$\mathrm{FFN}(x) = \max(0,\; x W_1 + b_1)\, W_2 + b_2$$


# %%
def normalized(x):
    """Layer norm with initial parameters: each vector gets mean 0 and variance 1."""
    centered = x - x.mean(dim=-1, keepdim=True)
    return centered / (centered.square().mean(dim=-1, keepdim=True) + 1e-6).sqrt()


layer = VanillaEncoderLayer(config).eval()  # eval: no dropout
output = layer(hidden_states)

# by hand
attended, _ = layer.self_attn(hidden_states, hidden_states, hidden_states)
middle = normalized(hidden_states + attended)
inner = (middle @ layer.fc1.weight.T + layer.fc1.bias).clamp(min=0)
fed = inner @ layer.fc2.weight.T + layer.fc2.bias
assert_close(output, normalized(middle + fed))

# dropout sets a tenth to zero and scales up the rest, so the mean stays the same (5.4)
ones = torch.ones(1_000_000)
dropped = VanillaDropout(0.1).train()(ones)
print(f"zeros {dropped.eq(0).float().mean():.4f}, mean {dropped.mean():.4f}")
print("means of the output's vectors", output.mean(dim=-1).detach().numpy().round(6).tolist())

# %% [markdown]
# **Exercise 6.** Compute the attention sublayer of `layer` as pre-norm: the norm is applied before
# the sublayer, and the sum is not normalized.

# %% tags=["exercise"]
exercise_6 = None  # a tensor (1, 5, 12)

if exercise_6 is not None:
    norm = normalized(hidden_states)
    assert_close(
        exercise_6,
        hidden_states + layer.self_attn(norm, norm, norm)[0],
        msg="x + Sublayer(LayerNorm(x)); self_attn gives a pair, and normalized() is the norm",
    )
    print("right")

# %% [markdown]
# ## Data and model (5.1, 3.4)
#
# The task is to translate English number words to German ones. German writes a number as one word
# and puts the units before the tens, so the model has to learn to reorder. Both languages share one
# vocabulary of subword tokens, and source, target and output share one embedding matrix (3.4).

# %%
numbers = list(range(10_000))
random.Random(0).shuffle(numbers)
pairs = [number_words(number) for number in numbers]
test, training = pairs[:200], pairs[200:]
print(test[0])

tokenizer = train_tokenizer((text for pair in training for text in pair.values()), vocab_size=350)
print([tokenizer.decode([token]) for token in tokenizer(test[0]["target"]).input_ids])

config = VanillaConfig(
    vocab_size=len(tokenizer),
    d_model=64,
    encoder_layers=2,
    decoder_layers=2,
    encoder_attention_heads=4,
    decoder_attention_heads=4,
    encoder_ffn_dim=256,
    decoder_ffn_dim=256,
)
model = VanillaForConditionalGeneration(config)

# by hand, for an encoder and a decoder layer: three attentions with four matrices each, two
# feed-forward networks with two matrices and their biases, five norms with two vectors; once: one
# embedding matrix
d, f, v = 64, 256, len(tokenizer)
by_hand = 2 * (3 * 4 * d * d + 2 * (2 * d * f + f + d) + 5 * 2 * d) + v * d
assert model.num_parameters() == by_hand
print(f"{by_hand:,} weights, vocabulary of {v} tokens")

# %% [markdown]
# ## Label smoothing (5.4)
#
# A model that is certain of every training label is overconfident on new text. The target
# distribution therefore gives probability 0.9 to the label and distributes 0.1 over all other
# tokens. The paper reports a worse perplexity and a better BLEU:
#
# $$L = -\sum_w q(w) \log p(w)$$

# %%
logits = torch.tensor([[[0.5, -1.0, 2.0, 0.0, 1.0]]])  # (B, T, V): one position, five tokens
loss = label_smoothed_loss(logits, torch.tensor([[2]]), smoothing=0.1)

log_probs = [score - math.log(sum(map(math.exp, logits[0, 0].tolist()))) for score in logits[0, 0]]
by_hand = -sum((0.9 if token == 2 else 0.025) * log_probs[token] for token in range(5))
assert_close(loss, by_hand)
print(f"{loss:.4f} nats, unsmoothed {-log_probs[2]:.4f}")

# %% [markdown]
# **Exercise 7.** What is the smallest smoothed loss, in nats, that a model with a vocabulary of `v`
# tokens can reach?

# %% tags=["exercise"]
exercise_7 = None  # a number

if exercise_7 is not None:
    floor = -0.9 * math.log(0.9) - 0.1 * math.log(0.1 / (v - 1))
    assert math.isclose(exercise_7, floor, rel_tol=1e-4), "the entropy of q; p = q reaches it"
    print("right")

# %% [markdown]
# ## The learning rate (5.3)
#
# $$rate = D^{-0.5} \cdot \min(step^{-0.5},\; step \cdot warmup^{-1.5})$$
#
# Why a warmup? At the start Adam's estimates of the gradient's size rest on few steps, and large
# steps in a post-norm model can end training. The learning rate rises linearly during warmup and
# then falls with the inverse square root of the step. Its peak is $(D \cdot warmup)^{-0.5}$. This
# short run uses the same shape with a lower peak, because the model is small.

# %%
optimizer = paper_adam(model.parameters(), learning_rate=4e-3)  # betas 0.9 and 0.98, epsilon 1e-9
schedule = inverse_sqrt_schedule(optimizer, warmup_steps=100)

(share,) = schedule.lr_lambdas  # share of the peak, by the number of finished steps
rates = [4e-3 * share(step - 1) for step in range(1, 401)]
by_hand = [4e-3 * 100**0.5 * min(step**-0.5, step * 100**-1.5) for step in range(1, 401)]
assert_close(rates, by_hand)

figure, axes = plt.subplots(figsize=(5, 2.6), layout="constrained")
axes.plot(range(1, 401), rates)
axes.set(xlabel="step", ylabel="learning rate", ylim=(0, None))
plt.show()

# %% [markdown]
# **Exercise 8.** At which step after the peak is the rate half of the peak?

# %% tags=["exercise"]
exercise_8 = None  # a number

if exercise_8 is not None:
    assert exercise_8 == 400, "the rate falls with the square root of the step"
    print("right")

# %% [markdown]
# ## Training (5)
#
# A step takes a batch, computes the loss and the gradient, and updates the weights. The tokenizer
# returns token ids, the collator pads them, and the model shifts the labels to the right and
# applies label smoothing in training mode. `scripts/train.py` adds batches of similar length,
# checkpoints, validation and several processes; the step is the same. The cell also keeps a copy of
# the model after 80 steps, for the section on beam search.

# %%
rows = [tokenizer(pair["source"], text_target=pair["target"]) for pair in training]
collate = DataCollatorForSeq2Seq(tokenizer, model=model)
draw = random.Random(0)


def train_step():
    """One update on 64 random pairs; returns the smoothed loss in nats per target token."""
    batch = collate([dict(row) for row in draw.sample(rows, 64)])
    loss = model(**batch).loss
    loss.backward()
    optimizer.step()
    schedule.step()
    optimizer.zero_grad()
    return loss.item()


def exact_match(model, **decoding):
    """Exact match on the test numbers, in percent."""
    found = translate(model, tokenizer, [pair["source"] for pair in test], **decoding)
    right = sum(a == pair["target"] for a, pair in zip(found, test, strict=True))
    return 100 * right / len(test)


model.train()
losses = [train_step() for _ in range(80)]
early = copy.deepcopy(model).eval()
losses += [train_step() for _ in range(320)]
model.eval()

figure, axes = plt.subplots(figsize=(5, 3), layout="constrained")
axes.plot(range(1, 401), losses, label="training loss, smoothed")
floor = -0.9 * math.log(0.9) - 0.1 * math.log(0.1 / (v - 1))
axes.axhline(floor, color="gray", linestyle="--", label="smallest possible (exercise 7)")
axes.set(xlabel="step", ylabel="nats per target token", ylim=(0, None))
axes.legend()
plt.show()

score = exact_match(model)
assert score > 95
print(f"exact match on numbers that were not in the training data: {score:.1f} %")

# %% [markdown]
# ## Beam search (6.1)
#
# Greedy search takes the most probable token at each step, but the most probable sentence can begin
# with a less probable token. Beam search keeps the best few hypotheses. A longer sentence has a
# lower probability, because it has more factors below 1. The paper therefore divides the
# log-probability by a length penalty, where n counts the tokens including the end token and $\alpha
# = 0.6$:
#
# $$score(y) = \log P(y) / lp(n), \qquad lp(n) = \frac{(5 + n)^\alpha}{6^\alpha}$$
#
# These are the four best hypotheses of the model after 80 steps, with each score computed by hand.

# %%
inputs = tokenizer(["seven thousand four hundred twenty-three"], return_tensors="pt")
found = early.generate(
    **inputs,
    num_beams=4,
    num_return_sequences=4,
    length_penalty=0.6,
    return_dict_in_generate=True,
    output_scores=True,
)

for sequence, score in zip(found.sequences, found.sequences_scores, strict=True):
    tokens = sequence[1:]  # without the start token
    tokens = tokens[: tokens.tolist().index(tokenizer.eos_token_id) + 1]
    with torch.no_grad():
        logits = early(**inputs, labels=tokens[None]).logits[0]  # (T, V)
    log_prob = logits.log_softmax(dim=-1).gather(1, tokens[:, None]).sum()
    by_hand = log_prob / ((5 + len(tokens)) / 6) ** 0.6
    assert_close(score, by_hand, rtol=1e-4, atol=1e-4)
    text = tokenizer.decode(tokens, skip_special_tokens=True)
    print(f"{score:7.3f}  log P {log_prob:7.3f}  n {len(tokens):2d}  {text}")

# %%
for beams in (1, 4):
    print(
        f"{beams} beam(s): after 80 steps {exact_match(early, num_beams=beams):.1f} %, "
        f"after 400 steps {exact_match(model, num_beams=beams):.1f} %"
    )

# %% [markdown]
# **Exercise 9.** What is the length penalty for n = 7, to two digits after the decimal point?

# %% tags=["exercise"]
exercise_9 = None  # a number

if exercise_9 is not None:
    assert round(exercise_9, 2) == 1.52, "(12 / 6) ** 0.6"
    print("right")

# %% [markdown]
# ## What heads learn
#
# The figure shows the cross-attention of each layer and head. A row is the target token that is
# generated, a column is a source token. The fast kernels do not return attention weights, so the
# cell uses the eager implementation.

# %%
sentence = "seven thousand four hundred twenty-three"
inputs = tokenizer([sentence], return_tensors="pt")
written = model.generate(**inputs)[:, 1:]  # without the start token
model.set_attn_implementation("eager")
with torch.no_grad():
    outputs = model(**inputs, labels=written, output_attentions=True)

across = [tokenizer.decode([token]) for token in inputs.input_ids[0]]
down = [tokenizer.decode([token]) for token in written[0]]
figure, panels = plt.subplots(
    2, 4, figsize=(11, 6.4), layout="constrained", sharex=True, sharey=True
)
for number, in_layer in enumerate(outputs.cross_attentions):  # each (B, H, T, S)
    for head, weights in enumerate(in_layer[0]):
        axes = panels[number, head]
        axes.imshow(weights, cmap="Blues", vmin=0, vmax=1, aspect="auto")
        axes.set_title(f"layer {number}, head {head}", fontsize=9)
        axes.set_xticks(range(len(across)), across, rotation=90)
        axes.set_yticks(range(len(down)), down)
figure.supxlabel("source")
figure.supylabel("generated target")
plt.show()

# %% [markdown]
# Follow one head from top to bottom. For "drei", it attends to "three", the last word of the
# source; for "zwanzig", which comes after it, it attends to "twenty". The next cell prints this as
# numbers: for each German token, the source token with the largest mean weight over the heads of
# the last layer.

# %%
mean = outputs.cross_attentions[-1][0].mean(dim=0)  # (T, S)
assert_close(mean.sum(dim=-1), torch.ones(len(down)))
for token, weights in zip(down, mean, strict=True):
    best = weights.argmax().item()
    print(f"{token:>12}  attends to {across[best]!r} ({weights[best]:.2f})")

# %% [markdown]
# **Exercise 10.** Which encoder head attends most to the previous token?
# `outputs.encoder_attentions` holds a tensor (B, H, S, S) for each layer.

# %% tags=["exercise"]
exercise_10 = None  # a pair, counted from 0: layer and head

if exercise_10 is not None:
    stacked = torch.stack(outputs.encoder_attentions)[:, 0]  # (layers, H, S, S)
    before = stacked.diagonal(offset=-1, dim1=-2, dim2=-1).mean(dim=-1)  # (layers, H)
    best = divmod(before.argmax().item(), before.shape[1])
    assert tuple(exercise_10) == best, "the mean of the diagonal below the main one is largest"
    print("right")

# %% [markdown]
# ## Next steps
#
# - `make demo` trains a larger model on numbers up to a million and writes a model folder.
# - The page "Train your own" trains on two text files of yours.
# - The page "Faithful to the paper" lists every choice that the paper leaves open, and the choices
#   of other toolkits.
