#!/usr/bin/env bash
# The GPU tests and the benchmark of the compressors, on a machine with an NVIDIA card:
#
#     experiments/bench/codecs_gpu.sh [FILE.json]
set -eu
cd "$(dirname "$0")/../.."
python -c 'import torch; assert torch.cuda.is_available(), "no CUDA device"; print(torch.cuda.get_device_name())'
python -m pytest -q tests/compressors tests/gossip/test_staging.py -k "gpu or cuda"
python -m gossip bench codecs --device cuda --threads 1 --sizes 1e6 25e6 --json "${1:-codecs_gpu.json}"
