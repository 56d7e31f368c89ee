#!/bin/sh
# A word-level language model on 4 ranks: all-reduce against DGC at 99 %, both with gradient clipping, two seeds.
#
#     sh experiments/text_lstm.sh DATA_FILE OUT_DIR
#
# DATA_FILE is any text file of about the size of tinyshakespeare.txt (1.1 MB), which makes 3,024 steps. A
# longer one makes more: --epochs is what to change. Finished runs are left alone, so an interrupted call can
# simply be repeated; `python -m gossip compare OUT_DIR` then makes the table.
set -eu
file=$1 out=$2
for seed in 1 2; do
    # DGC's warm-up is told in steps: 378 are one epoch of tinyshakespeare.txt.
    for row in allreduce dgc:ratio=0.01,warmup_steps=378; do
        run=$out/${row%%:*}-seed$seed
        [ -e "$run/summary.json" ] && continue
        mkdir -p "$out"
        echo "$run"
        mpirun -n 4 python -m experiments.train --dataset text:tokens=words,vocab=5000 --data-file "$file" \
            --model lstm:hidden=200,dropout=0.2,tied=true --batch-size 5 --bptt 35 --epochs 8 \
            --algorithm "$row" --lr 1 --momentum 0.9 --nesterov --weight-decay 0 --clip-norm 0.25 \
            --lr-schedule cosine --seed $seed --out "$run" --overwrite \
            > "$out/log.txt" 2>&1 || { cat "$out/log.txt"; exit 1; }
        mv "$out/log.txt" "$run/log.txt"
    done
done
