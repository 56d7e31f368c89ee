"""P3's claims without its hardware: a simulation of training steps, their times, and a picture of them.

python -m experiments.p3_simulation    # a table for VGG-19, ResNet-50 and AlexNet; --help for more
"""
