"""A script of your own: an ordinary torch loop, and one line that makes it a node among others.

mpirun -n 4 python minimal.py --algorithm dcd --topology ring --compressor qsgd:bits=8
"""

import torch
from torch import nn
from torch.utils.data import TensorDataset

import gossip
from gossip import cli


def main() -> None:
    parser = cli.ArgumentParser(description=__doc__)
    gossip.add_arguments(parser)
    args = parser.parse_args()

    torch.manual_seed(0)  # the same data on every node; node.shard deals it out
    x = torch.randn(4096, 20)
    y = (x @ torch.randn(20, 5)).argmax(1)
    model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 5))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    node = gossip.join(model, optimizer, **gossip.join_options(args))

    loader = node.shard(TensorDataset(x, y), batch_size=32)
    for epoch in range(1, 6):
        for batch, labels in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(batch.to(node.device)), labels.to(node.device))
            loss.backward()
            optimizer.step()
        with torch.no_grad():
            accuracy = (model(x.to(node.device)).argmax(1).cpu() == y).double().mean().item()
        if node.rank == 0:
            print(f"epoch {epoch}: accuracy {accuracy:.3f}", flush=True)
    distance = node.consensus_distance()
    if node.rank == 0:
        print(f"{node.size} nodes, consensus distance {distance:.2g}")
    node.finish()


if __name__ == "__main__":
    cli.run(main)
