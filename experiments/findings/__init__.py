"""The papers' statements about convergence, judged by the runs of experiments/findings.toml."""
