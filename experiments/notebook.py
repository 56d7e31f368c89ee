# %% [markdown]
# # Eight nodes in one process
#
# Virtual nodes need no MPI: `gossip.launch(fn, nodes=8)` runs `fn` on eight of them, with the same results
# as `mpirun -n 8`. Open this file as a notebook (VS Code, Jupyter with jupytext), or run it as a script:
#
#     python experiments/notebook.py

# %%
from pathlib import Path

import torch
from matplotlib.figure import Figure
from torch import nn
from torch.utils.data import TensorDataset

import gossip

NODES, STEPS, EVERY = 8, 96, 8
RUNS = {
    "D-PSGD, 32 bit": ("dpsgd", "identity"),
    "DCD, 8 bit": ("dcd", "qsgd:bits=8"),
    "CHOCO, sign": ("choco", "sign"),
    "naive, 4 bit": ("naive", "qsgd:bits=4"),
}

# %% [markdown]
# ## The data
# A task that a small network learns in a minute. `node.shard` deals the samples out to the nodes.

# %%
generator = torch.Generator().manual_seed(0)
x = torch.randn(4096, 20, generator=generator)
y = (x @ torch.randn(20, 5, generator=generator)).argmax(1)
train = TensorDataset(x[:3072], y[:3072])
x_test, y_test = x[3072:], y[3072:]


# %% [markdown]
# ## What a node does
# An ordinary training loop. Now and then all nodes measure together how far they are apart, and how well
# the average of their models does on the test data.


# %%
def train_node(algorithm: str, compressor: str) -> list[tuple[int, float, float]]:
    """Step, consensus distance and accuracy of the averaged model (%), every few steps."""
    model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 5))
    average = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 5))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    node = gossip.join(model, optimizer, algorithm=algorithm, topology="ring", compressor=compressor)
    loader, history, step = node.shard(train, batch_size=16), [], 0
    while step < STEPS:
        for batch, labels in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(batch), labels).backward()
            optimizer.step()
            step += 1
            if step % EVERY == 0:
                distance = node.consensus_distance()
                average.load_state_dict(node.averaged_state_dict())
                with torch.no_grad():
                    right = (average(x_test).argmax(1) == y_test).double().mean().item()
                history.append((step, distance, 100 * right))
            if step == STEPS:
                break
    node.finish()
    return history


# %% [markdown]
# ## Four methods
# Naive gossip of quantized models keeps the nodes apart; DCD and CHOCO do without most of the bytes.

# %%
histories = {}
for name, (algorithm, compressor) in RUNS.items():
    torch.manual_seed(1)
    histories[name] = gossip.launch(train_node, NODES, algorithm, compressor)[0]
    step, distance, accuracy = histories[name][-1]
    print(f"{name:<16} accuracy {accuracy:.1f} %, consensus distance {distance:.3g}")

# %%
figure = Figure(figsize=(9, 3.6), layout="constrained")
left, right = figure.subplots(1, 2)
for (name, history), color, dashes in zip(
    histories.items(), ("#0072B2", "#D55E00", "#009E73", "#CC79A7"), ("-", "--", "-.", ":"), strict=True
):
    steps, distances, accuracies = zip(*history, strict=True)
    left.plot(steps, accuracies, dashes, color=color, label=name)
    right.plot(steps, distances, dashes, color=color, label=name)
left.set(xlabel="step", ylabel="test accuracy of the averaged model, %")
right.set(xlabel="step", ylabel="consensus distance", yscale="log")
left.legend(frameon=False)
picture = Path("runs/notebook.png")
picture.parent.mkdir(exist_ok=True)
figure.savefig(picture, dpi=150)
figure  # noqa: B018 - shown in a notebook
