"""``python -m gossip list``, ``env``, ``bench``, ``plan``, with and without mpirun; ``link`` under it."""

from __future__ import annotations

import json

from gossip import bench
from gossip.catalog import PAGES, catalog
from gossip.cli import ArgumentParser, run
from gossip.envreport import as_text, collect
from gossip.mpirun import shell_exports
from gossip.plan import command as plan
from gossip.plan import link
from gossip.transport.environment import env_rank


def main() -> int:
    parser = ArgumentParser(prog="python -m gossip", description="What to train with, and on what machine.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    listing = commands.add_parser("list", help="algorithms, topologies, compressors, with their options")
    listing.add_argument("what", nargs="?", choices=PAGES, metavar="|".join(PAGES), help="only these")
    env = commands.add_parser("env", help="versions, MPI, GPUs, cores: what a bug report needs")
    form = env.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="as JSON")
    form.add_argument(
        "--shell",
        action="store_true",
        help='settings for mpirun as root or on few cores: eval "$(python -m gossip env --shell)"',
    )
    bench.add_arguments(commands.add_parser("bench", help="how long compressors take, beside a plain copy"))
    plan.add_arguments(commands.add_parser("plan", help="which method, graph and compressor for a network"))
    link.add_arguments(commands.add_parser("link", help="under mpirun: what plan needs to know of a network"))
    args = parser.parse_args()
    if args.command == "link":
        link.run(args)
        return 0
    if env_rank() != 0:
        return 0
    if args.command == "list":
        print("\n\n\n".join(catalog(what) for what in ([args.what] if args.what else PAGES)))
    elif args.command == "bench":
        bench.run(args)
    elif args.command == "plan":
        plan.run(args)
    elif args.shell:
        print(shell_exports())
    else:
        facts = collect()
        print(json.dumps(facts, indent=2) if args.json else as_text(facts))
    return 0


if __name__ == "__main__":
    run(main)
