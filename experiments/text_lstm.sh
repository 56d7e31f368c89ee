#!/bin/sh
# A word-level language model on 4 ranks: all-reduce against DGC at 99 %, both with gradient clipping, two seeds.
#
#     sh experiments/text_lstm.sh DATA_FILE OUT_DIR
#
# The numbers are for tinyshakespeare.txt (1.1 MB): 378 steps per epoch, 3,024 in all, DGC's warm-up in the
# first four epochs as in its paper. Finished runs are left alone, so an interrupted call can simply be
# repeated; `python -m gossip compare OUT_DIR` then makes the table.
set -eu
file=$1 out=$2
for seed in 1 2; do
    for row in allreduce dgc:ratio=0.01,warmup_steps=1512; do
        run=$out/${row%%:*}-seed$seed
        [ -e "$run/summary.json" ] && continue
        mkdir -p "$out"
        echo "$run"
        mpirun -n 4 python -m experiments.train --dataset text:tokens=words,vocab=5000 --data-file "$file" \
            --model lstm:hidden=200,dropout=0.3,tied=true --batch-size 5 --bptt 35 --epochs 8 \
            --algorithm "$row" --lr 4 --momentum 0.9 --nesterov --weight-decay 0 --clip-norm 0.25 \
            --lr-schedule cosine --seed $seed --out "$run" --overwrite \
            > "$out/log.txt" 2>&1 || { cat "$out/log.txt"; exit 1; }
        mv "$out/log.txt" "$run/log.txt"
    done
done
