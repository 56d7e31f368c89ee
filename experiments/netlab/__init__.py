"""The network laboratory: hosts with shaped links on one machine, and what training costs on them."""
