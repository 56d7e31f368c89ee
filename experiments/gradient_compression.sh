#!/bin/sh
# Gradient compression on CIFAR-10: 4 ranks, ResNet-20, 8 epochs with cosine decay, DGC's warm-up over half of
# them (4 epochs of 391 steps), two seeds.
#
#     sh experiments/gradient_compression.sh DATA_DIR OUT_DIR
#
# Finished runs are left alone, so an interrupted call can simply be repeated.
set -eu
data=$1 out=$2
mkdir -p "$out"
for seed in 1 2; do
    for method in allreduce dgc:ratio=0.001,warmup_steps=1564 gradient-dropping:ratio=0.001 \
            dgc:ratio=0.01,warmup_steps=1564 qsgd gradient-dropping:ratio=0.01; do
        run=$out/$(echo "$method" | sed 's/,warmup_steps=.*//; s/:ratio=/-/')-seed$seed
        [ -e "$run/summary.json" ] && continue
        echo "$run"
        mpirun -n 4 python -m experiments.train --model resnet20 --dataset cifar10 --data-dir "$data" \
            --algorithm "$method" --epochs 8 --batch-size 32 --lr 0.1 --lr-schedule cosine --amp bf16 \
            --seed $seed --out "$run" --overwrite > "$out/log.txt" 2>&1 || { cat "$out/log.txt"; exit 1; }
        mv "$out/log.txt" "$run/log.txt"
    done
done
