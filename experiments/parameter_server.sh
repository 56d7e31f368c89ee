#!/bin/sh
# Parameter servers on CIFAR-10: 4 ranks, ResNet-20, 5 epochs with cosine decay, two seeds. Slim-DP has q = 50.
#
#     sh experiments/parameter_server.sh DATA_DIR OUT_DIR
#
# Finished runs are left alone, so an interrupted call can simply be repeated.
set -eu
data=$1 out=$2
slim=slim:alpha=0.3,beta=0.15,q=50
mkdir -p "$out"
for seed in 1 2; do
    for row in allreduce= plump= "slim-keep=$slim,residual=keep" "slim-drop=$slim,residual=drop" qsgd= p3=; do
        name=${row%%=*} algorithm=${row#*=}
        run=$out/$name-seed$seed
        [ -e "$run/summary.json" ] && continue
        echo "$run"
        mpirun -n 4 python -m experiments.train --model resnet20 --dataset cifar10 --data-dir "$data" \
            --algorithm "${algorithm:-$name}" --epochs 5 --batch-size 32 --lr 0.1 --lr-schedule cosine \
            --amp bf16 --seed $seed --out "$run" --overwrite \
            > "$out/log.txt" 2>&1 || { cat "$out/log.txt"; exit 1; }
        mv "$out/log.txt" "$run/log.txt"
    done
done
