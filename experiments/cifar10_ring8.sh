#!/bin/sh
# The README's CIFAR-10 table: 8 ranks on a ring, ResNet-20, 5 epochs, four methods, two seeds.
#
#     sh experiments/cifar10_ring8.sh DATA_DIR OUT_DIR
#
# Finished runs are left alone, so an interrupted call can simply be repeated.
set -eu
data=$1 out=$2
for seed in 1 2; do
    for row in allreduce:identity dpsgd:identity dcd:qsgd:bits=8 choco:qsgd:bits=4; do
        algorithm=${row%%:*} compressor=${row#*:}
        run=$out/$algorithm-$(echo "$compressor" | tr -d ':=')-seed$seed
        [ -e "$run/summary.json" ] && continue
        mkdir -p "$out"
        echo "$run"
        mpirun -n 8 python -m experiments.train --model resnet20 --dataset cifar10 --data-dir "$data" \
            --algorithm "$algorithm" --compressor "$compressor" --topology ring --epochs 5 --batch-size 16 \
            --lr 0.1 --lr-schedule cosine --amp bf16 --seed $seed --out "$run" --overwrite \
            > "$out/log.txt" 2>&1 || { cat "$out/log.txt"; exit 1; }
        mv "$out/log.txt" "$run/log.txt"
    done
done
