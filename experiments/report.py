"""What rank 0 tells about a run: lines on the terminal and in metrics.jsonl, the summary, the plots."""

from __future__ import annotations

import argparse
import datetime
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from experiments import config, plot
from experiments.meter import PER_STEP, Meter, aggregate, slowest_rank
from experiments.progress import Progress, count, describe
from experiments.runfolder import RunFolder, read_metrics
from experiments.workloads import Workload
from gossip import envreport
from gossip.algorithms import DGC
from gossip.session import Session
from gossip.transport.environment import env_size, launched
from gossip.transport.local import LocalTransport

Line = dict[str, Any]

DIGITS = 12
"""Of the data's digest, in env.json: enough to tell data apart, and short enough to be read."""


class Report:
    """One rank's part of the reporting. All ranks call its methods at equal steps; rank 0 prints and writes.

    Args:
        done, total: steps at the start of this process and at the end of the run.
        steps_per_epoch: of the data.
    """

    def __init__(
        self,
        args: argparse.Namespace,
        folder: RunFolder,
        node: Session,
        model: nn.Module,
        workload: Workload,
        meter: Meter,
        steps_per_epoch: int,
        done: int,
        total: int,
    ) -> None:
        self._args, self._folder, self._node, self._model = args, folder, node, model
        self._workload, self._meter = workload, meter
        self._steps_per_epoch, self._done, self._total = steps_per_epoch, done, total
        self._writes = node.rank == 0
        self._virtual = node.size > 1 and isinstance(node.world, LocalTransport)
        self._progress = Progress(self._writes, done, total)

    def is_written(self) -> bool:
        """Collective: whether the run has its summary."""
        return bool(self._from_rank_0(lambda: self._folder.summary() is not None))

    def begin(self) -> None:
        """Collective: prepare the folder, and say what is going to happen. Nothing is written before.

        Where hosts share no disk, each has a folder of its own with its ranks' checkpoints. There the config
        marks it as a run's, and ``--resume`` finds it.
        """
        args, node = self._args, self._node
        settings, first_of_host = f"# {command()}\n{config.to_toml(args)}", node.world.local_rank == 0
        if first_of_host and not args.resume:
            self._folder.create()
        node.world.barrier()  # from here on no folder is emptied
        if first_of_host:
            self._folder.write_text("config.toml", settings)
        if not self._writes:
            return
        if args.resume:
            self._folder.rewind(self._done)
        data = {"data": self._workload.digest[:DIGITS], "data_caveat": self._workload.caveat}
        self._folder.write_json("env.json", envreport.collect() | data | {"virtual_nodes": self._virtual})
        for name, text in self._workload.files.items():
            self._folder.write_text(name, text)
        d = sum(p.numel() for p in self._model.parameters())
        self._progress.say(
            f"{args.model} ({d:,} parameters) on {args.dataset}; "
            f"{count(node.size, 'node')}, {node.topology.name}, {node.algorithm}, {node.compressor}, "
            f"{node.device.type}\n"
            f"steps {self._done} to {self._total}, {self._steps_per_epoch} per epoch, "
            f"effective batch {node.size * args.batch_size}, into {self._folder.path}"
        )
        for note in (*self._workload.notes, *node.notes, *self._warm_up_notes()):
            self._progress.say(f"note: {note}")

    def say(self, text: str) -> None:
        """A line on the terminal."""
        self._progress.say(text)

    def step(self, step: int) -> None:
        """A step is over."""
        self._progress.tick(step)

    def interval(self, step: int, test: bool) -> None:
        """Collective: close the log interval that ends with `step`, and `test` the averaged model."""
        norm = self._node.gradient_norm()  # first: it waits for what the step has sent, which counts
        mine = {**self._meter.close_interval(), "grad_norm": norm}
        everyone = self._node.world.allgather(mine)
        line: Line = {
            "step": step,
            "epoch": step / self._steps_per_epoch,
            "effective_batch": self._node.size * self._args.batch_size,
            **aggregate(everyone),
            "slowest_rank": slowest_rank(everyone),
        }
        if test:
            line.update(self._test())
        if self._writes:
            self._folder.append(line)
            self._progress.interval(line)

    def finish(self) -> None:
        """Collective: test every node's own model, write the summary and draw the plots."""
        headline, *_ = self._workload.measures
        last = self._from_rank_0(lambda: read_metrics(self._folder.path)[-1])
        if headline not in last:  # stopped there once, and told now to end there
            last |= self._test()
            if self._writes:
                self._folder.rewind(last["step"] - 1)
                self._folder.append(last)
        own = self._workload.test(self._model, self._node.device)[headline]
        mine = {**self._meter.result(self._steps_per_epoch), f"{headline}_local": own}
        everyone = self._node.world.allgather(mine)
        if not self._writes:
            return
        measured = aggregate(everyone)
        summary = self._summary(measured, self._total) | {
            **{name: last[name] for name in self._workload.measures},
            f"{headline}_local_mean": measured[f"{headline}_local"],
            f"{headline}_local_min": measured[f"{headline}_local_min"],
            f"{headline}_local_max": measured[f"{headline}_local_max"],
            "consensus_distance": last["consensus_distance"],
            "slowest_rank": slowest_rank(everyone),
        }
        self._folder.write_json("summary.json", summary)
        self._progress.say("\n" + describe(summary))
        for picture in plot.draw([self._folder.path], self._folder.path):
            self._progress.say(f"  plot                 {picture}")

    def diverged(self, first: Mapping[str, Any]) -> None:
        """Rank 0 alone: write the summary of a run that ended because `first["rank"]` diverged."""
        step = first["step"]
        self._meter.break_off()
        summary = self._summary(aggregate([self._meter.result(self._steps_per_epoch)]), step)
        summary |= {"diverged": True, "diverged_rank": first["rank"], "diverged_step": step}
        self._folder.write_json("summary.json", summary)

    # -- how ---------------------------------------------------------------------------------------

    def _warm_up_notes(self) -> Iterator[str]:
        method, total = self._node.algorithm, self._total
        if isinstance(method, DGC) and method.ratio_at(total) > method.ratio:
            yield (
                f"{method.name} never reaches its ratio of {method.ratio:g}: the run ends within its warm-up "
                f"of {method.warmup_steps} steps, at {method.ratio_at(total):g} in step {total}"
            )

    def _from_rank_0(self, read: Callable[[], Any]) -> Any:
        """Collective: what rank 0, which alone has the files everywhere, reads there."""
        return self._node.world.allgather(read() if self._writes else None)[0]

    def _test(self) -> Line:
        """Collective: what a test of the averaged model measures; the model is also saved."""
        node = self._node
        average = self._workload.averaged_model(node, self._model)
        measured = self._workload.test(average, node.device, node.world)
        if self._writes:
            self._folder.write_tensors("averaged.pt", _plain(average.state_dict()))
        return {**measured, "consensus_distance": node.consensus_distance()}

    def _summary(self, measured: Mapping[str, Any], steps: int) -> Line:
        args, node, measures = self._args, self._node, self._workload.measures
        return {
            "algorithm": str(node.algorithm),
            "topology": args.topology,
            "compressor": str(node.compressor),
            "nodes": node.size,
            "virtual_nodes": self._virtual,
            "model": args.model,
            "dataset": args.dataset,
            "batch_size": args.batch_size,
            "effective_batch": args.batch_size * node.size,
            "steps": steps,
            "epochs": steps / self._steps_per_epoch,
            "train_loss": measured["train_loss"],
            **dict.fromkeys(measures),
            **dict.fromkeys(f"{measures[0]}_local_{which}" for which in ("mean", "min", "max")),
            "consensus_distance": None,
            "bytes_sent_per_step": measured["bytes_sent_per_step"],
            "messages_sent_per_step": measured["messages_sent_per_step"],
            "allreduce_bytes_per_step": node.allreduce_bytes,
            **{name: measured[name] for name in PER_STEP if name != "loss"},
            "exposed_wait_ms_mean": measured["exposed_wait_ms_mean"],
            "slowest_rank": None,
            "compression_error": measured["compression_error"],
            "diverged": False,
            "seed": args.seed,
            "started": self._meter.started,
            "ended": datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
            "seconds": round(self._meter.seconds, 1),
            "command": command(),
        }


def command() -> str:
    """What was typed."""
    start = f"mpirun -n {env_size()} " if launched() else ""
    return start + shlex.join(["python", "-m", "experiments.train", *sys.argv[1:]])


def _plain(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """On the CPU and in the usual layout, each tensor with storage of its own: a file for anybody."""
    return {name: torch.empty(x.shape, dtype=x.dtype).copy_(x.detach()) for name, x in state.items()}
